#ifndef SUPERVISOR_DOCTOR_THIS_MACHINE_H_
#define SUPERVISOR_DOCTOR_THIS_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "supervisor/doctor/machine.h"

namespace baton::doctor {

// The machine on which this process runs.
class ThisMachine final : public Machine {
 public:
  // Looks for files below `root`.
  explicit ThisMachine(std::string root = "") : root_(std::move(root)) {}

  std::optional<std::string> Read(const std::string& path) const override;
  std::vector<std::string> List(const std::string& path) const override;
  std::optional<FileFacts> Look(const std::string& path) const override;
  std::string LinkName(const std::string& path) const override;
  absl::Status LookForNetworkNamespace(const std::string& name) const override;
  std::optional<uint32_t> GroupId(const std::string& name) const override;
  std::vector<InterfaceAddress> Addresses() const override;
  std::optional<bool> ClockIsSynchronized() const override;
  std::vector<std::string> VerbsDevices() const override;
  absl::StatusOr<verbs::DeviceLimits> Limits(const std::string& device,
                                             uint32_t port) const override;
  std::string VerbsLibrary() const override;

 private:
  const std::string root_;
};

Identity OwnIdentity();
// kNotFound: there is no such user.
absl::StatusOr<Identity> IdentityOf(const std::string& user);

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_THIS_MACHINE_H_
