#include "supervisor/config/down_reason.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "lib/text/one_line.h"
#include "supervisor/config/replace_file.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace {

constexpr size_t kMaxReasonBytes = 1024;

}  // namespace

void SetDownReason(const std::string& state_dir, const std::string& service, std::string_view why) {
  const std::string path = DownReasonPath(state_dir, service);
  if (why.empty()) {
    (void)unlink(path.c_str());
    return;
  }
  std::string line(why);
  std::replace(line.begin(), line.end(), '\n', ' ');
  (void)ReplaceFile(path, line + '\n');
}

std::string DownReason(const std::string& state_dir, const std::string& service) {
  std::ifstream file(DownReasonPath(state_dir, service));
  std::string line;
  std::getline(file, line);
  return OneLine(line, kMaxReasonBytes);
}

}  // namespace baton
