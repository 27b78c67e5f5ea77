#include "supervisor/config/problems.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton {

void Problems::AddAt(int line, int column, std::string_view text) {
  std::string place;
  if (!file_name_.empty()) {
    place = line > 0 ? absl::StrCat(file_name_, ":", line, ":", column, ": ")
                     : absl::StrCat(file_name_, ": ");
  }
  lines_.push_back(absl::StrCat(place, absl::string_view(text.data(), text.size())));
}

absl::Status Problems::ToStatus() const {
  if (lines_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
}

}  // namespace baton
