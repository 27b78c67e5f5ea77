#include "tests/bench/footprint.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton::bench {

// proc(5), /proc/PID/smaps_rollup: a line of addresses, then "Name: N kB". Its Private_ lines have
// a memfd that only one process maps just now: Anonymous does not.
absl::StatusOr<Footprint> ReadFootprint(pid_t pid) {
  const std::string directory = absl::StrCat("/proc/", pid);
  std::ifstream file(directory + "/smaps_rollup");
  std::string line;
  std::getline(file, line);
  Footprint footprint;
  std::string name, unit;
  for (uint64_t kilobytes = 0; file >> name >> kilobytes >> unit;) {
    if (name == "Anonymous:") footprint.private_bytes = kilobytes * 1024;
    if (name == "Rss:") footprint.resident_bytes = kilobytes * 1024;
    if (name == "Pss:") footprint.proportional_bytes = kilobytes * 1024;
  }
  if (footprint.resident_bytes == 0) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has no memory: it is gone"));
  }
  std::error_code error;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(directory + "/fd", error)) {
    ++footprint.descriptors;
  }
  return footprint;
}

}  // namespace baton::bench
