// A ledger whose worker, once it is told to, overwrites again and again all memory that it shares
// with others: with what is random, and with the number of a process that is not its business. Half
// of the workers serve on meanwhile, and soon die of it. The others do nothing else.
//
// BATON_HOSTILE_ORDER: path of a file. When it is there, it has that number. FILE.begun is made
// when the memory has been overwritten for the first time.
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "worker/examples/ledger/ledger_program.h"

namespace {

constexpr size_t kBytes = 4096;

struct Area {
  uintptr_t begin = 0, end = 0;
};

std::vector<Area> SharedMemory() {
  std::vector<Area> areas;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    Area area;
    std::array<char, 5> rights = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &area.begin, &area.end, rights.data()) == 3 &&
        std::string(rights.data()) == "rw-s" && line.find("/memfd:") != std::string::npos) {
      areas.push_back(area);
    }
  }
  return areas;
}

void DoNothing(int) {
  for (;;) pause();
}

void Overwrite(const std::string& order, pthread_t server) {
  uint32_t number = 0;
  while (!(std::ifstream(order) >> number)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::mt19937 random(std::random_device{}());
  if (random() % 2 == 0) {
    std::signal(SIGUSR1, DoNothing);
    pthread_kill(server, SIGUSR1);
  }
  std::array<uint32_t, kBytes / sizeof(uint32_t)> words;
  for (;;) {
    for (const Area& area : SharedMemory()) {
      for (uintptr_t at = area.begin; at < area.end; at += kBytes) {
        for (uint32_t& word : words) word = random() % 2 == 0 ? number : random();
        std::memcpy(reinterpret_cast<void*>(at), words.data(), kBytes);
      }
    }
    std::ofstream(order + ".begun");
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Before it attaches: the memory is there already.
  std::thread(Overwrite, std::string(std::getenv("BATON_HOSTILE_ORDER")), pthread_self()).detach();
  return baton::ledger::LedgerProgram("ledger-hostile", 1).Main(argc, argv);
}
