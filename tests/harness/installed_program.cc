#include "tests/harness/installed_program.h"

#include <fstream>
#include <iterator>

#include "lib/base/version.h"

namespace baton::harness {

std::string ReadProgram(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void InstallProgram(const std::filesystem::path& path, const std::string& program) {
  const std::filesystem::path file = path.string() + ".new";
  std::ofstream(file) << program;
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  std::filesystem::rename(file, path);
}

std::string WithRelease(std::string program, const std::string& release) {
  const std::string own = std::string(1, '\0') + kRelease + std::string(1, '\0');
  const size_t at = program.find(own);
  if (at == std::string::npos || release.size() != std::string(kRelease).size()) return "";
  return program.replace(at + 1, release.size(), release);
}

}  // namespace baton::harness
