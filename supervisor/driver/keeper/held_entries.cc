#include "supervisor/driver/keeper/held_entries.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::driver_process {

absl::Status HeldEntries::Hold(const internal::Hold& entry,
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

size_t HeldEntries::DropAllBut(const std::string& prefix) {
  return std::erase_if(entries_,
                       [&](const auto& entry) { return !entry.first.starts_with(prefix); });
}

bool HeldEntries::Next(const std::string& key, internal::Hold* entry,
                       std::vector<int>* descriptors) const {
  const auto next = entries_.upper_bound(key);
  if (next == entries_.end()) return false;
  entry->set_key(next->first);
  entry->set_value(next->second.value);
  for (const FileDescriptor& descriptor : next->second.descriptors) {
    descriptors->push_back(descriptor.get());
  }
  return true;
}

}  // namespace baton::driver_process
