// The machine that the checks inspect: the real one, or a test's.
#ifndef SUPERVISOR_DOCTOR_MACHINE_H_
#define SUPERVISOR_DOCTOR_MACHINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/verbs/verbs.h"

namespace baton::doctor {

struct FileFacts {
  uint32_t mode = 0;  // type and permissions, as in stat(2)
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::string device;  // of a device node: "231:192"
};

struct InterfaceAddress {
  std::string interface;
  std::string address;  // in inet_ntop's form
};

// The user as which batond is going to run.
struct Identity {
  std::string name;
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;  // besides gid
  bool self = true;              // this process runs as that user
};

// Nothing here changes the machine. Paths are absolute.
class Machine {
 public:
  virtual ~Machine() = default;

  // Returns the contents without white space at the end. None: the file is missing, or may not be
  // read.
  virtual std::optional<std::string> Read(const std::string& path) const = 0;
  // Returns the names, sorted; empty: there is no such directory.
  virtual std::vector<std::string> List(const std::string& path) const = 0;
  // Follows symbolic links.
  virtual std::optional<FileFacts> Look(const std::string& path) const = 0;
  // Returns the last part of a symbolic link's target; empty: it is no symbolic link.
  virtual std::string LinkName(const std::string& path) const = 0;

  // Returns OK if there is a network namespace of this name or path.
  virtual absl::Status LookForNetworkNamespace(const std::string& name) const = 0;

  virtual std::optional<uint32_t> GroupId(const std::string& name) const = 0;
  virtual std::vector<InterfaceAddress> Addresses() const = 0;
  // Returns whether NTP or PTP keeps the clock right; none: the kernel does not report it.
  virtual std::optional<bool> ClockIsSynchronized() const = 0;

  // The devices for which libibverbs has a provider. Limits() opens a device to read its limits.
  virtual std::vector<std::string> VerbsDevices() const = 0;
  virtual absl::StatusOr<verbs::DeviceLimits> Limits(const std::string& device,
                                                     uint32_t port) const = 0;
  // Returns the file of libibverbs ("libibverbs.so.1.14.44.0"); empty: it is not known.
  virtual std::string VerbsLibrary() const = 0;
};

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_MACHINE_H_
