// Holds what a keeper leaves to the one that follows it. The driver does not look into it.
#ifndef SUPERVISOR_DRIVER_KEEPER_HELD_ENTRIES_H_
#define SUPERVISOR_DRIVER_KEEPER_HELD_ENTRIES_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/file_descriptor.h"
#include "proto/baton/internal/driver.pb.h"

namespace baton::driver_process {

// Bounded: refuses more entries, and more bytes. Thread-compatible.
class HeldEntries {
 public:
  static constexpr size_t kMostEntries = 1024;
  static constexpr size_t kMostBytes = 16 << 20;  // of all values

  // Replaces the entry with the same key. kResourceExhausted: a bound would be exceeded, or some of
  // the entry's descriptors have not arrived.
  absl::Status Hold(const internal::Hold& entry, std::vector<FileDescriptor> descriptors);
  void Drop(const std::string& key) { entries_.erase(key); }
  // Drops every entry whose key does not begin with `prefix`. Returns how many there were.
  size_t DropAllBut(const std::string& prefix);

  // Fills `entry` and `descriptors` with the first entry whose key is after `key`. This object goes
  // on owning the descriptors. Returns false if there is none.
  bool Next(const std::string& key, internal::Hold* entry, std::vector<int>* descriptors) const;

 private:
  struct Entry {
    std::string value;
    std::vector<FileDescriptor> descriptors;
  };

  std::map<std::string, Entry> entries_;
};

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_KEEPER_HELD_ENTRIES_H_
