#include "tests/native/stepper.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "tests/harness/wait_until.h"

namespace baton::native {
namespace {

constexpr uint8_t kBreakpoint = 0xcc;  // int3
constexpr std::chrono::nanoseconds kArrival = std::chrono::seconds(20);
constexpr timespec kLook = {0, 50'000};

struct Function {
  uintptr_t end;
  std::string name;
};

std::string Readable(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  std::string text = readable ? readable.get() : name;
  // Without parameters, and what is in front of the name.
  text.resize(std::min(text.find('('), text.size()));
  return text;
}

// Returns the functions of this program by the addresses at which they begin.
std::map<uintptr_t, Function> ReadFunctions() {
  const FileDescriptor file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  BATON_CHECK(file && fstat(file.get(), &status) == 0);
  void* const mapped =
      mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file.get(), 0);
  BATON_CHECK(mapped != MAP_FAILED);
  const auto* const image = static_cast<const uint8_t*>(mapped);
  uintptr_t base = 0;
  // The program itself comes first.
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<uintptr_t*>(to) = info->dlpi_addr;
        return 1;
      },
      &base);
  std::map<uintptr_t, Function> functions;
  const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(image);
  const auto* const sections = reinterpret_cast<const Elf64_Shdr*>(image + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* const symbols = reinterpret_cast<const Elf64_Sym*>(image + sections[i].sh_offset);
    const auto* const names =
        reinterpret_cast<const char*>(image + sections[sections[i].sh_link].sh_offset);
    for (size_t j = 0; j < sections[i].sh_size / sizeof(Elf64_Sym); ++j) {
      if (ELF64_ST_TYPE(symbols[j].st_info) != STT_FUNC || symbols[j].st_size == 0) continue;
      const uintptr_t begin = base + symbols[j].st_value;
      functions[begin] = {begin + symbols[j].st_size, names + symbols[j].st_name};
    }
  }
  munmap(mapped, static_cast<size_t>(status.st_size));
  return functions;
}

}  // namespace

Stepper::Stepper(pid_t process) : process_(process) {
  BATON_CHECK(ptrace(PTRACE_SEIZE, process_, nullptr, PTRACE_O_EXITKILL) == 0);
  BATON_CHECK(ptrace(PTRACE_INTERRUPT, process_, nullptr, nullptr) == 0);
  BATON_CHECK(Stopped(/*bounded=*/false));
}

// Whether it has stopped, and not ended.
bool Stepper::Stopped(bool bounded) {
  const uint64_t deadline = MonotonicNanoseconds() + harness::Patient(kArrival).count();
  pid_t changed;
  while ((changed = waitpid(process_, &status_, bounded ? WNOHANG : 0)) == 0) {
    if (MonotonicNanoseconds() > deadline) return false;
    nanosleep(&kLook, nullptr);
  }
  BATON_CHECK(changed == process_);
  return WIFSTOPPED(status_);
}

void Stepper::Resume(int request) {
  BATON_CHECK(ptrace(static_cast<__ptrace_request>(request), process_, nullptr, nullptr) == 0);
}

// The byte that was there. It is the process's own afterwards, copied.
uint8_t Stepper::Exchange(uintptr_t address, uint8_t code) {
  errno = 0;
  const long word = ptrace(PTRACE_PEEKTEXT, process_, address, nullptr);
  BATON_CHECK(errno == 0);
  const auto changed = static_cast<long>((static_cast<uint64_t>(word) & ~uint64_t{0xff}) | code);
  BATON_CHECK(ptrace(PTRACE_POKETEXT, process_, address, changed) == 0);
  return static_cast<uint8_t>(word);
}

uintptr_t Stepper::position() const {
  user_regs_struct registers;
  BATON_CHECK(ptrace(PTRACE_GETREGS, process_, nullptr, &registers) == 0);
  return registers.rip;
}

uintptr_t Stepper::RunTo(std::initializer_list<uintptr_t> instructions) {
  if (!Step(1)) return 0;
  const uintptr_t first = position();
  if (std::find(instructions.begin(), instructions.end(), first) != instructions.end())
    return first;
  std::vector<std::pair<uintptr_t, uint8_t>> replaced;
  for (const uintptr_t instruction : instructions) {
    replaced.emplace_back(instruction, Exchange(instruction, kBreakpoint));
  }
  Resume(PTRACE_CONT);
  if (!Stopped(/*bounded=*/true) || WSTOPSIG(status_) != SIGTRAP) return 0;
  user_regs_struct registers;
  BATON_CHECK(ptrace(PTRACE_GETREGS, process_, nullptr, &registers) == 0);
  --registers.rip;
  BATON_CHECK(ptrace(PTRACE_SETREGS, process_, nullptr, &registers) == 0);
  bool expected = false;
  for (const auto& [instruction, code] : replaced) {
    Exchange(instruction, code);
    expected = expected || registers.rip == instruction;
  }
  BATON_CHECK(expected);
  return registers.rip;
}

bool Stepper::Step(uint64_t instructions) {
  for (uint64_t i = 0; i < instructions; ++i) {
    Resume(PTRACE_SINGLESTEP);
    if (!Stopped(/*bounded=*/false) || WSTOPSIG(status_) != SIGTRAP) return false;
  }
  return true;
}

void Stepper::Detach() { Resume(PTRACE_DETACH); }

std::string FunctionAt(uintptr_t address) {
  static const std::map<uintptr_t, Function> functions = ReadFunctions();
  auto found = functions.upper_bound(address);
  if (found != functions.begin() && address < (--found)->second.end) {
    return Readable(found->second.name.c_str());
  }
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(address), &info) == 0) return "(outside all libraries)";
  std::string library = info.dli_fname;
  library.erase(0, library.rfind('/') + 1);
  return info.dli_sname == nullptr ? library : library + ":" + Readable(info.dli_sname);
}

}  // namespace baton::native
