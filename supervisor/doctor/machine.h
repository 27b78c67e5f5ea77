// The machine that the checks inspect: the real one, or one that a test made up.
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
  std::string device;  // "231:192" of a device's node
};

struct InterfaceAddress {
  std::string interface;
  std::string address;  // as inet_ntop writes it
};

struct Library {
  std::string name;  // "libibverbs"
  std::string file;  // "libibverbs.so.1.14.44.0"
};

// The user as which batond is going to run.
struct Identity {
  std::string name;
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;  // besides gid
  bool self = true;              // this process is it
};

// Nothing here changes the machine. Paths are absolute.
class Machine {
 public:
  virtual ~Machine() = default;

  // Without the white space at its end. None: not there, or not ours to read.
  virtual std::optional<std::string> Read(const std::string& path) const = 0;
  // Names, sorted; empty when there is no such directory.
  virtual std::vector<std::string> List(const std::string& path) const = 0;
  // Follows symbolic links.
  virtual std::optional<FileFacts> Look(const std::string& path) const = 0;
  // The last part of what a symbolic link names; empty when it is none.
  virtual std::string LinkName(const std::string& path) const = 0;

  // Whether there is a network namespace of this name or path.
  virtual absl::Status LookForNetworkNamespace(const std::string& name) const = 0;

  virtual std::optional<uint32_t> GroupId(const std::string& name) const = 0;
  virtual std::vector<InterfaceAddress> Addresses() const = 0;
  // Whether somebody (NTP, PTP) keeps the clock right; none: the kernel does not tell.
  virtual std::optional<bool> ClockIsSynchronized() const = 0;

  // The devices for which libibverbs has a provider. Limits() opens a device to read its limits.
  virtual std::vector<std::string> VerbsDevices() const = 0;
  virtual absl::StatusOr<verbs::DeviceLimits> Limits(const std::string& device,
                                                     uint32_t port) const = 0;
  virtual std::vector<Library> Libraries() const = 0;
};

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_MACHINE_H_
