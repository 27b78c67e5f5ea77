// Files that tests read whole.
#ifndef TESTS_HARNESS_FILE_CONTENT_H_
#define TESTS_HARNESS_FILE_CONTENT_H_

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace baton::harness {

// Returns the content of the file. Empty: it cannot be read.
inline std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace baton::harness

#endif  // TESTS_HARNESS_FILE_CONTENT_H_
