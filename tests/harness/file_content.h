// Files that tests read whole.
#ifndef TESTS_HARNESS_FILE_CONTENT_H_
#define TESTS_HARNESS_FILE_CONTENT_H_

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace baton::harness {

// Returns the content of the file. Empty: it cannot be read.
// Tests call it again and again for logs that grow, and are compiled without the optimiser: it has
// no loop of its own.
inline std::string ReadFile(const std::filesystem::path& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

}  // namespace baton::harness

#endif  // TESTS_HARNESS_FILE_CONTENT_H_
