#include "supervisor/batond/descriptor_store.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton {

absl::Status DescriptorStore::Put(const std::string& name,
                                  std::vector<FileDescriptor> descriptors) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a name of ", name.size(), " bytes; 1 to ", kMaxNameBytes, " are possible"));
  }
  if (descriptors.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" came without descriptors; drop removes an entry"));
  }
  if (entries_.count(name) == 0 && entries_.size() >= kMaxNames) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store holds ", kMaxNames, " entries already; drop one first"));
  }
  entries_[name] = std::move(descriptors);
  if (on_change_) on_change_(name, *Get(name));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> DescriptorStore::Get(const std::string& name) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) return absl::NotFoundError(absl::StrCat("nothing under ", name));
  std::vector<int> descriptors;
  for (const FileDescriptor& descriptor : entry->second) descriptors.push_back(descriptor.get());
  return descriptors;
}

absl::Status DescriptorStore::Drop(const std::string& name) {
  if (entries_.erase(name) == 0) return absl::NotFoundError(absl::StrCat("nothing under ", name));
  if (on_change_) on_change_(name, {});
  return absl::OkStatus();
}

std::vector<std::string> DescriptorStore::List() const {
  std::vector<std::string> names;
  for (const auto& [name, descriptors] : entries_) names.push_back(name);
  return names;
}

}  // namespace baton
