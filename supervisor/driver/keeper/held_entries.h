// Holds what a keeper leaves to the one that follows it. The driver does not look into it.
#ifndef SUPERVISOR_DRIVER_KEEPER_HELD_ENTRIES_H_
#define SUPERVISOR_DRIVER_KEEPER_HELD_ENTRIES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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
  // Keeps the entry, but marks it, until another is held in its place: no keeper goes on with it.
  // Returns its value; empty: there is no such entry.
  std::string SetAside(const std::string& key, const std::string& why);

  // Fills `entry` and `descriptors` with the first entry whose key is after `key`. This object goes
  // on owning the descriptors. Returns false if there is none.
  bool Next(const std::string& key, internal::Hold* entry, std::vector<int>* descriptors) const;

 private:
  struct Entry {
    std::string value;
    std::vector<FileDescriptor> descriptors;
    std::string set_aside = {};  // why; empty: it is not
  };

  std::map<std::string, Entry> entries_;
};

inline absl::Status HeldEntries::Hold(const internal::Hold& entry,
                                      std::vector<FileDescriptor> descriptors) {
  if (entry.has_descriptors() && entry.descriptors() != descriptors.size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("hold: ", entry.descriptors(), " descriptors were sent with ", entry.key(),
                     " and ", descriptors.size(), " arrived: raise RLIMIT_NOFILE"));
  }
  size_t bytes = entry.value().size();
  for (const auto& [key, held] : entries_) {
    if (key != entry.key()) bytes += held.value.size();
  }
  if (bytes > kMostBytes || (entries_.size() >= kMostEntries && entries_.count(entry.key()) == 0)) {
    return absl::ResourceExhaustedError(absl::StrCat("hold: ", entries_.size(), " entries with ",
                                                     bytes, " bytes would be held: ", "at most ",
                                                     kMostEntries, " with ", kMostBytes));
  }
  entries_[entry.key()] = {entry.value(), std::move(descriptors)};
  return absl::OkStatus();
}

inline size_t HeldEntries::DropAllBut(const std::string& prefix) {
  return std::erase_if(entries_,
                       [&](const auto& entry) { return !entry.first.starts_with(prefix); });
}

inline std::string HeldEntries::SetAside(const std::string& key, const std::string& why) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return "";
  found->second.set_aside = why;
  return found->second.value;
}

inline bool HeldEntries::Next(const std::string& key, internal::Hold* entry,
                              std::vector<int>* descriptors) const {
  const auto next = entries_.upper_bound(key);
  if (next == entries_.end()) return false;
  entry->set_key(next->first);
  entry->set_value(next->second.value);
  entry->set_set_aside(next->second.set_aside);
  entry->set_descriptors(static_cast<uint32_t>(next->second.descriptors.size()));
  for (const FileDescriptor& descriptor : next->second.descriptors) {
    descriptors->push_back(descriptor.get());
  }
  return true;
}

}  // namespace baton::driver_process

#endif  // SUPERVISOR_DRIVER_KEEPER_HELD_ENTRIES_H_
