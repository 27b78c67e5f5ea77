#include "tests/bench/fleet.h"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "lib/base/status.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/config/state_files.h"
#include "tests/harness/file_content.h"
#include "tests/harness/wait_until.h"
#include "worker/examples/ledger/ledger_protocol.h"

namespace baton::bench {
namespace {

// A process needs these besides one for each connection.
constexpr uint64_t kOtherDescriptors = 256;

constexpr const char* kHost = "127.0.0.1";
constexpr uint32_t kMessageBytes = ledger::kMinMessageBytes;
// Hundreds of processes come up on a few cores.
constexpr std::chrono::minutes kStart{5};
constexpr std::chrono::seconds kStop{30};
constexpr std::chrono::seconds kSettle{60};
// One peer process has so many: few enough to wait in a listener's queue at once.
constexpr uint32_t kConnectionsPerPeer = 256;
constexpr uint64_t kSettleRate = 5000;
constexpr std::chrono::milliseconds kSilence{10};
constexpr size_t kDumpedLogs = 4, kDumpedBytes = 4000;

}  // namespace

absl::Status RaiseDescriptorLimit(uint64_t connections) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::InternalError("getrlimit failed");
  limit.rlim_cur = limit.rlim_max;
  const uint64_t needed = connections + kOtherDescriptors;
  if (limit.rlim_max < needed || setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(connections, " connections need a hard RLIMIT_NOFILE of ", needed, "; it is ",
                     limit.rlim_max, ": raise it, or give fewer --connections"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Start(FleetOptions options) {
  BATON_RETURN_IF_ERROR(RaiseDescriptorLimit(options.connections));
  BATON_ASSIGN_OR_RETURN(harness::TempDirectory directory, harness::TempDirectory::Create());
  std::unique_ptr<Fleet> fleet(new Fleet(std::move(options), std::move(directory)));
  fleet->services_.resize(fleet->options_.services);
  absl::Status status = fleet->StartBatond();
  if (status.ok()) status = fleet->StartWorkers();
  if (status.ok()) return fleet;
  fleet->DumpLogs();
  return status;
}

// The peers first: nobody is to see them disconnected.
Fleet::~Fleet() {
  if (batond_ != nullptr && !batond_->HasEnded() && !batond_->Terminate(kStop).ok()) {
    batond_->Kill().IgnoreError();  // nothing is left to be told of it
  }
}

std::string Fleet::NameOf(uint32_t service) { return absl::StrCat("ledger-", service); }

std::string Fleet::SocketOf(uint32_t service) const {
  return WorkerSocketPath(directory_.File("state"), NameOf(service));
}

std::string Fleet::NewLog(const std::string& program) {
  logs_.push_back(absl::StrCat(directory_.path(), "/", logs_.size(), "-", program, ".log"));
  return logs_.back();
}

uint32_t Fleet::ConnectionsOf(uint32_t service) const {
  return options_.connections / options_.services +
         (service < options_.connections % options_.services ? 1 : 0);
}

absl::Status Fleet::WriteConfiguration(const std::string& path) const {
  v1::Config config;
  config.set_state_dir(directory_.File("state"));
  const uint32_t connections = ConnectionsOf(0) + kSpareConnections;
  for (uint32_t i = 0; i < options_.services; ++i) {
    v1::ServiceConfig& service = *config.add_services();
    service.set_name(NameOf(i));
    service.mutable_device()->mutable_soft();
    service.set_max_connections(connections);
    service.set_send_queue_depth(options_.queue_depth);
    service.set_receive_queue_depth(options_.queue_depth);
    // The ledger has buffers for twice the depth, of requests and of replies.
    service.set_buffer_bytes(uint64_t{2} * options_.queue_depth * connections *
                             (kMessageBytes + ledger::kReplyBytes));
    service.set_max_workers(options_.workers + 1);
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(config, &text);
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write " + path);
}

absl::Status Fleet::StartBatond() {
  const std::string configuration = directory_.File("batond.textproto");
  BATON_RETURN_IF_ERROR(WriteConfiguration(configuration));
  harness::ChildOptions child;
  BATON_ASSIGN_OR_RETURN(child.program, options_.binaries.Find("batond"));
  // batond takes its children from one directory; in a Bazel tree they lie in several.
  const std::string libexec = directory_.File("libexec");
  std::error_code error;
  std::filesystem::create_directory(libexec, error);
  for (const char* name : {"baton-driver", "baton-keeper", "baton-control"}) {
    BATON_ASSIGN_OR_RETURN(const std::string path, options_.binaries.Find(name));
    std::filesystem::create_symlink(path, absl::StrCat(libexec, "/", name), error);
  }
  std::filesystem::create_directory(directory_.File("state"), error);
  child.log_path = NewLog("batond");
  child.arguments = {"--config",        configuration,
                     "--libexec",       libexec,
                     "--start-timeout", absl::StrCat(std::chrono::seconds(kStart).count())};
  BATON_ASSIGN_OR_RETURN(batond_, harness::ChildProcess::Start(child));
  BATON_RETURN_IF_ERROR(batond_->ReadLineWith("batond ready", kStart).status());
  operators_ =
      std::make_unique<harness::OperatorClient>(OperatorSocketPath(directory_.File("state")));
  operators_->set_timeout(kStart);
  return operators_->GetStatus().status();
}

// All at once, but the first of each service: where it listens is told the others.
absl::Status Fleet::StartWorkers() {
  for (uint32_t begin = 0, end = 1; begin < options_.workers;
       begin = std::exchange(end, options_.workers)) {
    for (uint32_t i = 0; i < options_.services; ++i) {
      for (uint32_t worker = begin; worker < end; ++worker) {
        BATON_ASSIGN_OR_RETURN(services_[i].workers.emplace_back().process, SpawnWorker(i));
      }
    }
    for (uint32_t i = 0; i < options_.services; ++i) {
      for (uint32_t worker = begin; worker < end; ++worker) {
        BATON_RETURN_IF_ERROR(AwaitWorker(i, &services_[i].workers[worker]));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<harness::ChildProcess>> Fleet::SpawnWorker(uint32_t service) {
  harness::ChildOptions child;
  BATON_ASSIGN_OR_RETURN(child.program, options_.binaries.Find("ledger-v1"));
  child.log_path = NewLog("ledger");
  child.arguments = {"--socket",       SocketOf(service),
                     "--service",      NameOf(service),
                     "--listen",       absl::StrCat(kHost, ":", services_[service].port),
                     "--window",       absl::StrCat(options_.queue_depth),
                     "--message-size", absl::StrCat(kMessageBytes)};
  return harness::ChildProcess::Start(child);
}

absl::Status Fleet::AwaitWorker(uint32_t service, Worker* worker) {
  BATON_ASSIGN_OR_RETURN(const std::string line,
                         worker->process->ReadLineWith("ledger ready", kStart));
  unsigned long long id = 0;
  unsigned port = 0;
  if (std::sscanf(line.c_str(), "ledger ready version=%*d worker=%llu port=%u", &id, &port) != 2) {
    return absl::InternalError("a ledger worker said \"" + line + "\"");
  }
  worker->id = id;
  services_[service].port = static_cast<uint16_t>(port);
  return absl::OkStatus();
}

absl::StatusOr<Fleet::Worker> Fleet::StartWorker(uint32_t service) {
  Worker worker;
  BATON_ASSIGN_OR_RETURN(worker.process, SpawnWorker(service));
  BATON_RETURN_IF_ERROR(AwaitWorker(service, &worker));
  return worker;
}

absl::Status Fleet::StopWorker(uint32_t service, Worker worker) {
  BATON_RETURN_IF_ERROR(worker.process->Terminate(kStop));
  return harness::WaitUntil("a worker to be gone", [&] {
    const auto now = operators_->GetService(NameOf(service));
    return now.ok() && std::none_of(now->workers().begin(), now->workers().end(),
                                    [&](const v1::Worker& one) { return one.id() == worker.id; });
  });
}

absl::StatusOr<std::unique_ptr<harness::PeerProcess>> Fleet::StartPeer(
    uint32_t service, harness::PeerOptions options) {
  BATON_ASSIGN_OR_RETURN(options.program, options_.binaries.Find("baton-peer"));
  options.fabric = {"soft", kHost};
  options.port = services_[service].port;
  options.log_path = NewLog("baton-peer");
  options.message_bytes = kMessageBytes;
  return harness::PeerProcess::Start(options);
}

absl::Status Fleet::Connect() {
  for (uint32_t i = 0; i < options_.services; ++i) {
    for (uint32_t left = ConnectionsOf(i); left > 0;) {
      const uint32_t now = std::min(left, kConnectionsPerPeer);
      BATON_RETURN_IF_ERROR(ConnectIdle(i, now));
      left -= now;
    }
  }
  return absl::OkStatus();
}

absl::Status Fleet::AwaitSilence(harness::PeerProcess& peer) {
  const auto deadline = std::chrono::steady_clock::now() + kSettle;
  for (uint64_t messages = 1; messages > 0;) {
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError("a peer at rest goes on sending");
    }
    BATON_RETURN_IF_ERROR(peer.Mark("before").status());
    std::this_thread::sleep_for(kSilence);
    BATON_ASSIGN_OR_RETURN(const harness::PeerWindow window, peer.Mark("silence"));
    messages = window.messages;
  }
  return absl::OkStatus();
}

// Every request has had its reply, and every reply was acknowledged. The soft device gives up a
// peer that leaves one unacknowledged for long.
absl::StatusOr<bool> Fleet::IsQuiet(uint32_t service) {
  uint32_t start = 0;
  do {
    BATON_ASSIGN_OR_RETURN(const v1::ListConnectionsResponse page,
                           operators_->ListConnections(NameOf(service), start));
    for (const v1::ConnectionOfService& one : page.connections()) {
      const v1::Connection& connection = one.connection();
      if (connection.receives_completed() != connection.sends_committed() ||
          connection.sends_committed() != connection.sends_completed()) {
        return false;
      }
    }
    start = page.next_page_start();
  } while (start != 0);
  return true;
}

// A stopped peer keeps its connections and says nothing more.
absl::Status Fleet::ConnectIdle(uint32_t service, uint32_t connections) {
  harness::PeerOptions options;
  options.connections = connections;
  options.window = 1;
  options.rate = kSettleRate;
  BATON_ASSIGN_OR_RETURN(auto peer, StartPeer(service, options));
  BATON_RETURN_IF_ERROR(peer->Settle(kSettle));
  BATON_RETURN_IF_ERROR(peer->SetRate(1));
  for (bool quiet = false; !quiet;) {
    BATON_RETURN_IF_ERROR(AwaitSilence(*peer));
    BATON_RETURN_IF_ERROR(peer->process().Signal(SIGSTOP));
    BATON_ASSIGN_OR_RETURN(quiet, IsQuiet(service));
    if (!quiet) BATON_RETURN_IF_ERROR(peer->process().Signal(SIGCONT));
  }
  idle_.push_back(std::move(peer));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Fleet::CountConnections() {
  BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, operators_->GetStatus());
  uint64_t count = 0;
  for (const v1::Service& service : status.services()) count += service.connection_count();
  return count;
}

std::vector<pid_t> Fleet::Processes::All() const {
  std::vector<pid_t> all = {batond, control};
  all.insert(all.end(), keepers.begin(), keepers.end());
  all.insert(all.end(), drivers.begin(), drivers.end());
  all.insert(all.end(), brokers.begin(), brokers.end());
  all.insert(all.end(), workers.begin(), workers.end());
  return all;
}

absl::StatusOr<Fleet::Processes> Fleet::Servers() {
  BATON_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, operators_->GetStatus());
  Processes processes;
  processes.batond = batond_->pid();
  processes.control = status.control_pid();
  for (const v1::Service& service : status.services()) {
    processes.keepers.push_back(service.keeper_pid());
    processes.drivers.push_back(service.driver_pid());
    for (const pid_t broker : {service.broker_pid(), service.twin_pid()}) {
      if (broker != 0) processes.brokers.push_back(broker);
    }
  }
  for (const ServiceState& service : services_) {
    for (const Worker& worker : service.workers) {
      processes.workers.push_back(worker.process->pid());
    }
  }
  return processes;
}

// batond's, and of the others those that said something last.
void Fleet::DumpLogs() const {
  std::vector<std::pair<std::filesystem::file_time_type, std::string>> recent;
  for (const std::string& path : logs_) {
    std::error_code error;
    const auto time = path == logs_.front() ? std::filesystem::file_time_type::max()
                                            : std::filesystem::last_write_time(path, error);
    if (std::filesystem::file_size(path, error) > 0 && !error) recent.emplace_back(time, path);
  }
  std::sort(recent.rbegin(), recent.rend());
  for (size_t i = 0; i < std::min(recent.size(), kDumpedLogs); ++i) {
    std::string log = harness::ReadFile(recent[i].second);
    if (log.size() > kDumpedBytes) log = "…" + log.substr(log.size() - kDumpedBytes);
    std::fprintf(stderr, "---- %s\n%s", recent[i].second.c_str(), log.c_str());
  }
}

// proc(5), /proc/PID/smaps_rollup: a line of addresses, then "Name: N kB". Its Private_ lines have
// a memfd that only one process maps just now: Anonymous does not.
absl::StatusOr<Footprint> ReadFootprint(pid_t pid) {
  const std::string directory = absl::StrCat("/proc/", pid);
  std::ifstream file(directory + "/smaps_rollup");
  std::string line;
  std::getline(file, line);
  Footprint footprint;
  std::string name, unit;
  for (uint64_t kilobytes = 0; file >> name >> kilobytes >> unit;) {
    if (name == "Anonymous:") footprint.private_bytes = kilobytes * 1024;
    if (name == "Rss:") footprint.resident_bytes = kilobytes * 1024;
    if (name == "Pss:") footprint.proportional_bytes = kilobytes * 1024;
  }
  if (footprint.resident_bytes == 0) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has no memory: it is gone"));
  }
  std::error_code error;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(directory + "/fd", error)) {
    ++footprint.descriptors;
  }
  return footprint;
}

}  // namespace baton::bench
