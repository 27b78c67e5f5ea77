// Programs that a test replaces while they run.
#ifndef TESTS_HARNESS_INSTALLED_PROGRAM_H_
#define TESTS_HARNESS_INSTALLED_PROGRAM_H_

#include <filesystem>
#include <string>

namespace baton::harness {

std::string ReadProgram(const std::filesystem::path& path);

// Puts another file in the place of the one that may run, as a package does.
void InstallProgram(const std::filesystem::path& path, const std::string& program);

// Returns `program`, of Baton's, with another release, as long as ours. Empty: it has none.
std::string WithRelease(std::string program, const std::string& release);

}  // namespace baton::harness

#endif  // TESTS_HARNESS_INSTALLED_PROGRAM_H_
