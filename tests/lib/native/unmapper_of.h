#ifndef TESTS_LIB_NATIVE_UNMAPPER_OF_H_
#define TESTS_LIB_NATIVE_UNMAPPER_OF_H_

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/native/mappings.h"

namespace baton::native {

// Returns the unmapper of a process that lives; -1: it has none.
inline pid_t UnmapperOf(pid_t process) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream status(entry.path() / "status");
    std::string name, line;
    std::getline(status, name);
    if (name != absl::StrCat("Name:\t", kUnmapperName)) continue;
    while (std::getline(status, line)) {
      if (line == absl::StrCat("PPid:\t", process)) return std::stoi(entry.path().filename());
    }
  }
  return -1;
}

}  // namespace baton::native

#endif  // TESTS_LIB_NATIVE_UNMAPPER_OF_H_
