// memd-cli: a client of memd for people and scripts. README.md has examples.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/memd/memd_checker.h"
#include "worker/examples/memd/memd_client.h"

namespace baton::memd {
namespace {

using Clock = std::chrono::steady_clock;

// A lease that a command keeps is renewed when half of its time is over.
constexpr uint64_t kLeaseMs = 60'000;
constexpr uint64_t kMostFileBytes = std::numeric_limits<uint32_t>::max();

struct Arguments {
  std::string address;
  std::string device = "soft";
  std::string file;
  RemoteMemory memory;  // that another client has leased
  bool once = false;
  bool until_stdin_closes = false;
  uint64_t count = 1;
  uint64_t value = 1;
  uint64_t bytes = 4096;
  uint64_t seed = 1;
  double seconds = 1;
};

// FNV-1a, of 64 bits.
uint64_t Checksum(absl::Span<const uint8_t> bytes) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const uint8_t byte : bytes) sum = (sum ^ byte) * 0x100000001b3;
  return sum;
}

std::string Hex(uint64_t number) { return absl::StrCat("0x", absl::Hex(number)); }

// Tries again for five seconds while nobody listens there: the service may just be starting.
absl::StatusOr<std::unique_ptr<MemdClient>> Connect(const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(arguments.address));
  const auto end = Clock::now() + std::chrono::seconds(5);
  for (;;) {
    BATON_ASSIGN_OR_RETURN(auto device, examples::OpenDevice(arguments.device));
    auto client = MemdClient::Connect(std::move(device), address, {});
    if (client.ok() || Clock::now() > end) return client;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

// Waits so long for the end of standard input. Takes what is there.
bool InputEnds(std::chrono::milliseconds wait) {
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, static_cast<int>(wait.count())) <= 0) return false;
  std::array<char, 256> taken;
  return read(STDIN_FILENO, taken.data(), taken.size()) <= 0;
}

absl::StatusOr<RemoteLease> Allocate(MemdClient& client, uint64_t bytes) {
  AllocateOptions options;
  options.bytes = bytes;
  options.milliseconds = kLeaseMs;
  return client.Allocate(options);
}

absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<uint8_t> bytes(std::istreambuf_iterator<char>(file), {});
  if (file.fail() && bytes.empty()) {
    return absl::NotFoundError(absl::StrCat(path, ": it cannot be read, or is empty"));
  }
  if (bytes.empty() || bytes.size() > kMostFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes.size(), " bytes; a lease has ", "1 to ", kMostFileBytes));
  }
  return bytes;
}

// Puts the file into leased memory, compares what comes back, and keeps it there.
absl::Status Put(const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, ReadFile(arguments.file));
  BATON_ASSIGN_OR_RETURN(const auto client, Connect(arguments));
  BATON_ASSIGN_OR_RETURN(RemoteLease lease, Allocate(*client, bytes.size()));
  BATON_RETURN_IF_ERROR(client->Notify(lease, 0, bytes));
  std::vector<uint8_t> back(bytes.size());
  BATON_RETURN_IF_ERROR(client->Read(lease.memory, 0, absl::MakeSpan(back)));
  if (back != bytes) return absl::DataLossError("the memory does not hold what was written");
  std::cout << "lease=" << lease.id << " rkey=" << Hex(lease.memory.rkey)
            << " address=" << Hex(lease.memory.address) << " bytes=" << bytes.size()
            << " checksum=" << Hex(Checksum(bytes)) << std::endl;
  while (!arguments.once && !InputEnds(std::chrono::milliseconds(kLeaseMs / 2))) {
    BATON_ASSIGN_OR_RETURN(lease, client->Renew(lease.id, kLeaseMs));
  }
  return client->Free(lease.id);
}

absl::Status Get(const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const auto client, Connect(arguments));
  std::vector<uint8_t> bytes(arguments.memory.bytes);
  BATON_RETURN_IF_ERROR(client->Read(arguments.memory, 0, absl::MakeSpan(bytes)));
  if (!arguments.file.empty()) {
    std::ofstream file(arguments.file, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) {
      return absl::UnavailableError(absl::StrCat(arguments.file, ": it cannot be written"));
    }
  }
  std::cout << "bytes=" << bytes.size() << " checksum=" << Hex(Checksum(bytes)) << std::endl;
  return absl::OkStatus();
}

// Adds to a word, of another client or of a lease of its own.
absl::Status Add(const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const auto client, Connect(arguments));
  RemoteMemory memory = arguments.memory;
  memory.bytes = sizeof(uint64_t);
  const bool is_own = memory.rkey == 0;
  if (is_own) {
    BATON_ASSIGN_OR_RETURN(const RemoteLease lease, Allocate(*client, memory.bytes));
    memory = lease.memory;
  }
  uint64_t before = 0;
  for (uint64_t i = 0; i < arguments.count; ++i) {
    BATON_ASSIGN_OR_RETURN(before, client->FetchAdd(memory, 0, arguments.value));
    if (is_own && before != i * arguments.value) {
      return absl::DataLossError(
          absl::StrCat("after ", i, " additions of ", arguments.value, ", the word is ", before));
    }
  }
  std::cout << before + arguments.value << std::endl;
  return absl::OkStatus();
}

// Works on its memory until its time is over, or its input ends.
absl::Status Hold(const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const auto client, Connect(arguments));
  MemdCheckerOptions options;
  options.bytes = arguments.bytes;
  options.milliseconds = kLeaseMs;
  options.seed = arguments.seed;
  BATON_ASSIGN_OR_RETURN(MemdChecker checker, MemdChecker::Begin(client.get(), options));
  std::cout << "holding lease=" << checker.lease().id
            << " rkey=" << Hex(checker.lease().memory.rkey) << std::endl;
  const auto end = Clock::now() + std::chrono::duration<double>(arguments.seconds);
  const auto is_over = [&] {
    return arguments.until_stdin_closes ? InputEnds(std::chrono::milliseconds(0))
                                        : Clock::now() > end;
  };
  while (!is_over()) BATON_RETURN_IF_ERROR(checker.Round());
  BATON_RETURN_IF_ERROR(checker.End());
  std::cout << "rounds=" << checker.rounds() << " lost=0" << std::endl;
  return absl::OkStatus();
}

// One access at a time, for a second each, or as long as the arguments say.
absl::Status Measure(const Arguments& arguments, const char* name, uint64_t bytes,
                     const std::function<absl::Status()>& access) {
  const auto begun = Clock::now();
  const auto end = begun + std::chrono::duration<double>(arguments.seconds);
  uint64_t count = 0;
  Clock::duration longest{};
  auto before = begun;
  while (before < end) {
    BATON_RETURN_IF_ERROR(access());
    const auto now = Clock::now();
    longest = std::max(longest, now - before);
    before = now;
    ++count;
  }
  using Microseconds = std::chrono::duration<double, std::micro>;
  const double taken = Microseconds(before - begun).count();
  std::cout << name << ": " << count << " of " << bytes
            << " bytes, mean_us=" << taken / static_cast<double>(count)
            << " longest_us=" << Microseconds(longest).count()
            << " MB/s=" << static_cast<double>(count * bytes) / taken << std::endl;
  return absl::OkStatus();
}

absl::Status Bench(const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const auto client, Connect(arguments));
  AllocateOptions wanted;
  wanted.bytes = std::max<uint64_t>(arguments.bytes, sizeof(uint64_t));
  BATON_ASSIGN_OR_RETURN(const RemoteLease lease, client->Allocate(wanted));
  std::vector<uint8_t> bytes(arguments.bytes);
  BATON_RETURN_IF_ERROR(Measure(arguments, "WRITE", bytes.size(),
                                [&] { return client->Write(lease.memory, 0, bytes); }));
  BATON_RETURN_IF_ERROR(Measure(arguments, "READ", bytes.size(), [&] {
    return client->Read(lease.memory, 0, absl::MakeSpan(bytes));
  }));
  BATON_RETURN_IF_ERROR(Measure(arguments, "FETCH_ADD", sizeof(uint64_t),
                                [&] { return client->FetchAdd(lease.memory, 0, 1).status(); }));
  return Measure(arguments, "lease and free", bytes.size(), [&]() -> absl::Status {
    BATON_ASSIGN_OR_RETURN(const RemoteLease other, client->Allocate(wanted));
    return client->Free(other.id);
  });
}

examples::Flags AddCommand(examples::Flags& flags, const char* name, const char* help,
                           absl::Status (*run)(const Arguments&), const Arguments& arguments,
                           absl::Status& status) {
  return flags.Command(name, help, [run, &arguments, &status] { status = run(arguments); });
}

void AddCommands(examples::Flags& flags, Arguments& arguments, absl::Status& status) {
  examples::Flags put = AddCommand(flags, "put", "put a file into leased memory, and keep it there",
                                   Put, arguments, status);
  put.Add("file", &arguments.file, "to put there").Required();
  put.Switch("--once", &arguments.once, "end at once, and not with standard input");
  examples::Flags get =
      AddCommand(flags, "get", "read memory that another client has put", Get, arguments, status);
  get.Add("rkey", &arguments.memory.rkey, "as put has printed it").Required();
  get.Add("address", &arguments.memory.address, "likewise").Required();
  get.Add("bytes", &arguments.memory.bytes, "likewise").Required();
  get.Add("file", &arguments.file, "where to write them [nowhere]");
  examples::Flags add =
      AddCommand(flags, "add", "add to a word of memory, and print it", Add, arguments, status);
  add.Add("rkey", &arguments.memory.rkey, "of another client's [a word of its own]");
  add.Add("address", &arguments.memory.address, "of the word, with an rkey");
  add.Add("--value", &arguments.value, "what is added [1]");
  add.Add("--count", &arguments.count, "how often [1]");
  examples::Flags hold =
      AddCommand(flags, "hold", "work on leased memory, and check all that comes back", Hold,
                 arguments, status);
  hold.Add("--seconds", &arguments.seconds, "how long [1]");
  hold.Switch("--until-stdin-closes", &arguments.until_stdin_closes, "how long");
  hold.Add("--bytes", &arguments.bytes, "that are leased [4096]");
  hold.Add("--seed", &arguments.seed, "of what is written, and where [1]");
  examples::Flags bench =
      AddCommand(flags, "bench", "measure WRITE, READ, FETCH_ADD and leasing, one at a time", Bench,
                 arguments, status);
  bench.Add("--seconds", &arguments.seconds, "how long each [1]");
  bench.Add("--bytes", &arguments.bytes, "of each access [4096]");
}

int Main(int argc, char** argv) {
  Arguments arguments;
  absl::Status status;
  examples::Flags flags(
      "A client of memd. Exit status 0: everything was as it has to be; 1: it was not.");
  flags.Add("service", &arguments.address, "HOST:PORT").Required();
  flags.Add("--device", &arguments.device, "soft, rdma, or rdma:NAME [soft]");
  AddCommands(flags, arguments, status);
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  if (status.ok()) return 0;
  std::cerr << "memd-cli: " << status << std::endl;
  return 1;
}

}  // namespace
}  // namespace baton::memd

int main(int argc, char** argv) { return baton::memd::Main(argc, argv); }
