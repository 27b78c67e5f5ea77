// Descriptors that outlive the keeper which opened them.
#ifndef SUPERVISOR_BATOND_DESCRIPTOR_STORE_H_
#define SUPERVISOR_BATOND_DESCRIPTOR_STORE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"

namespace baton {

// The descriptors of one service, by name. Thread-compatible. Bounded, so that a keeper cannot use
// up the descriptors of batond: the other services need them.
class DescriptorStore {
 public:
  static constexpr size_t kMaxNames = 64;
  static constexpr size_t kMaxNameBytes = 64;

  // Takes the place of what was there under `name`.
  absl::Status Put(const std::string& name, std::vector<FileDescriptor> descriptors);

  // They stay the store's; valid until the next Put or Drop of `name`.
  absl::StatusOr<std::vector<int>> Get(const std::string& name) const;

  absl::Status Drop(const std::string& name);

  std::vector<std::string> List() const;  // sorted

 private:
  std::map<std::string, std::vector<FileDescriptor>> entries_;
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_DESCRIPTOR_STORE_H_
