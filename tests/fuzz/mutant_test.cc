// Linked with one source of Baton's that has a defect: an input of the corpora has to show it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/program.h"

namespace baton::fuzz {
namespace {

using Target = void (*)(const uint8_t* data, size_t size);

// What it throws ends the process: GoogleTest, which is there twice, does not get it.
void RunAll(const std::filesystem::path& corpus, Target target) noexcept {
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
    target(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
}

// What an oracle of the targets says before it aborts, what the sanitizers say, and what a span
// says that is asked for more than it has.
constexpr std::string_view kOracles[] = {
    "broken invariant: ", "ERROR: AddressSanitizer: ", "runtime error: ",
    "after throwing an instance of 'std::out_of_range'"};

#ifdef MUTANT_LEAVES_MEMORY
// The oracle of a defect that reaches memory which is not there: the processor's.
void OnFault(int, siginfo_t* fault, void*) {
  constexpr std::string_view kText = "broken invariant: all memory that is reached is there\n";
  if (fault->si_code > 0) (void)!write(STDERR_FILENO, kText.data(), kText.size());
  _exit(1);
}
void TellOfFaults() {
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO;
  for (const int signal : {SIGSEGV, SIGBUS}) sigaction(signal, &action, nullptr);
}
#else
void TellOfFaults() {}
#endif

// Whether an oracle has found the defect. A process that ends in any other way, by a signal or for
// want of memory, proves nothing: how it ended is printed.
bool IsCaught(const char* name, Target target) {
  const std::filesystem::path corpus = std::filesystem::path("tests/fuzz/corpus") / name;
  EXPECT_FALSE(std::filesystem::is_empty(corpus));
  std::FILE* const said = std::tmpfile();
  EXPECT_NE(said, nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(fileno(said), STDERR_FILENO);
    TellOfFaults();
    RunAll(corpus, target);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  std::string text(static_cast<size_t>(lseek(fileno(said), 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(fileno(said), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  std::fclose(said);
  for (const std::string_view oracle : kOracles) {
    const size_t at = text.find(oracle);
    if (at == std::string::npos) continue;
    std::cout << "caught: " << name << ": " << text.substr(at, text.find('\n', at) - at)
              << std::endl;
    return true;
  }
  if (WIFSIGNALED(status)) {
    std::cout << "not caught: " << name << ": the process ended with "
              << strsignal(WTERMSIG(status)) << ", and no oracle said why: " << text << std::endl;
  }
  return false;
}

// MUTANT_UNDER names one or more fuzzers. One of them has to catch it.
#define FUZZER(corpus, target) IsCaught(#corpus, target) ||
TEST(MutantTest, MUTANT) { EXPECT_TRUE(MUTANT_UNDER false); }

}  // namespace
}  // namespace baton::fuzz
