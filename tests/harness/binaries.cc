#include "tests/harness/binaries.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/version.h"

namespace baton::harness {
namespace {

// Where programs lie in a Bazel output tree; directly in the directory comes first.
constexpr const char* kPackages[] = {"",
                                     "supervisor/batond/",
                                     "supervisor/driver/",
                                     "supervisor/keeper/",
                                     "supervisor/control/",
                                     "supervisor/cli/",
                                     "worker/examples/filed/",
                                     "worker/examples/ledger/",
                                     "worker/examples/memd/",
                                     "worker/examples/nvmed/",
                                     "worker/examples/peer/",
                                     "worker/examples/pingd/",
                                     "tests/bench/",
                                     "tests/crash/",
                                     "tests/demo/"};

}  // namespace

Binaries::Binaries(const std::string& directory) {
  if (!directory.empty()) roots_.push_back(directory);
  if (const char* variable = std::getenv("BATON_BIN"); variable != nullptr && *variable != '\0') {
    roots_.emplace_back(variable);
  }
  if (const char* sources = std::getenv("TEST_SRCDIR"); sources != nullptr) {
    roots_.push_back(absl::StrCat(sources, "/baton"));
  }
  char self[PATH_MAX] = {};
  if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) return;
  roots_.push_back(absl::StrCat(self, ".runfiles/baton"));
  for (std::filesystem::path path = std::filesystem::path(self).parent_path();
       path.has_relative_path(); path = path.parent_path()) {
    roots_.push_back(path.string());
    if (path.filename() == "bin") break;  // the root of a Bazel output tree
  }
}

absl::StatusOr<std::string> Binaries::Find(const std::string& name) const {
  for (const std::string& root : roots_) {
    for (const char* package : kPackages) {
      const std::string path = absl::StrCat(root, "/", package, name);
      std::error_code error;
      if (std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0) {
        return std::filesystem::absolute(path, error).string();
      }
    }
  }
  return absl::NotFoundError(absl::StrCat("the program ", name,
                                          " was not found; build everything, or name its "
                                          "directory with --bin or BATON_BIN. Looked in: ",
                                          absl::StrJoin(roots_, ", ")));
}

void InstallProgram(const std::filesystem::path& path, const std::string& program) {
  const std::filesystem::path file = path.string() + ".new";
  std::ofstream(file) << program;
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  std::filesystem::rename(file, path);
}

std::string WithRelease(std::string program, const std::string& release) {
  const std::string own = std::string(kRelease) + std::string(1, '\0');
  if (release.size() + 1 != own.size()) return "";
  size_t at = program.find(own);
  if (at == std::string::npos) return "";
  // The program tells it, and so does its file (lib/base/release_note.h). Any byte may come before
  // the first constant of a section.
  for (; at != std::string::npos; at = program.find(own, at + 1)) {
    program.replace(at, release.size(), release);
  }
  return program;
}

}  // namespace baton::harness
