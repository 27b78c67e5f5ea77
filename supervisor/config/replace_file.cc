#include "supervisor/config/replace_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"

namespace baton {

absl::Status ReplaceFile(const std::string& path, std::string_view contents) {
  const std::string next = path + ".new";
  std::ofstream file(next, std::ios::trunc);
  file << contents;
  file.close();
  if (!file.fail() && std::rename(next.c_str(), path.c_str()) == 0) return absl::OkStatus();
  absl::Status status = ErrnoStatus(errno, absl::StrCat("write ", next));
  (void)unlink(next.c_str());
  return status;
}

}  // namespace baton
