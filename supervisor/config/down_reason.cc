#include "supervisor/config/down_reason.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "supervisor/config/state_files.h"

namespace baton {

void SetDownReason(const std::string& state_dir, const std::string& service, std::string_view why) {
  const std::string path = DownReasonPath(state_dir, service);
  if (why.empty()) {
    (void)unlink(path.c_str());
    return;
  }
  // Whole or not at all.
  const std::string next = path + ".new";
  std::string line(why);
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::ofstream file(next, std::ios::trunc);
  file << line << '\n';
  file.close();
  if (file.fail() || std::rename(next.c_str(), path.c_str()) != 0) (void)unlink(next.c_str());
}

std::string DownReason(const std::string& state_dir, const std::string& service) {
  std::ifstream file(DownReasonPath(state_dir, service));
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace baton
