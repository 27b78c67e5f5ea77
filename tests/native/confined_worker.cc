// An object whose workers tell what they were given, and serve nothing: descriptors, the identity
// that the kernel knows, and memory that they share with others. Each line is told whole, and
// begins with the pid; the last one is "told".
#include <dirent.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>

#include "lib/native/host.h"

extern "C" const BatonNativeObject baton_native_object = {BATON_NATIVE_VERSION,
                                                          sizeof(BatonNativeObject), "a test"};

namespace {

void Tell(const std::string& what) {
  const std::string line = std::to_string(getpid()) + " " + what + "\n";
  (void)!write(STDOUT_FILENO, line.data(), line.size());
}

void TellDescriptors() {
  std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir("/proc/self/fd"), closedir);
  while (const dirent* const entry = readdir(entries.get())) {
    if (entry->d_name[0] == '.' || std::atoi(entry->d_name) == dirfd(entries.get())) continue;
    std::array<char, PATH_MAX> target = {};
    (void)!readlinkat(dirfd(entries.get()), entry->d_name, target.data(), target.size() - 1);
    Tell("descriptor " + std::string(target.data()));
  }
}

void TellStatus() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const std::string name = line.substr(0, line.find(':'));
    for (const char* const wanted :
         {"Uid", "Gid", "Groups", "NoNewPrivs", "CapInh", "CapPrm", "CapEff", "CapAmb"}) {
      if (name == wanted) Tell(line);
    }
  }
}

// Once each: address, rights, offset, device, inode, and then the name.
void TellSharedMemory() {
  std::set<std::string> names;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t rights = line.find(' ') + 1, name = line.find_first_of("/[");
    if (line.substr(rights, 4) != "rw-s") continue;
    names.insert(name == std::string::npos ? "without a name" : line.substr(name));
  }
  for (const std::string& name : names) Tell("shares " + name);
}

}  // namespace

int main() {
  TellDescriptors();
  TellStatus();
  TellSharedMemory();
  for (const char* const name : {"BATON_READY_FD", "BATON_LOCK_FD"}) {
    if (std::getenv(name) != nullptr) Tell(std::string("has ") + name);
  }
  Tell("told");
  for (;;) pause();
}
