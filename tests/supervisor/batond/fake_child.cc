// Stands in for baton-driver, baton-keeper and baton-control (it is copied under these names):
// makes the sockets that the real one makes, says that it is ready, waits, and shows that it lives.
// FAKE_KEEPER and FAKE_CONTROL change that, and FAKE_KEEPER_<service> that of one keeper:
//   absent    ends with exit code 3 before it is ready, as long as there is no file FAKE_LOG.go;
//             leaves the down reason "no device"
//   exit      ends with exit code 3 before it is ready
//   crash     is killed by a signal before it is ready
//   hang      is never ready
//   fragile   ends as soon as it has been ready
//   stubborn  ignores SIGTERM
//   slow      is ready when there is a file FAKE_LOG.go; notes "asked" when it gets SIGTERM then
//   reload    asks batond to read its configuration again once it is up; notes what it is told,
//             ever
//   disconnect  the same, and takes what ends connections
//   validate  the same, but only asks what would be taken
//   picky     takes no listeners of a changed configuration
//   deaf      does not answer on its management socket
//   keeper_hangs  says that its keeper hangs, also as a control, which has none
//   open      asks batond for the files in FAKE_OPEN once it is up; notes what it gets
//   outlives  as a control that finds the next batond: notes "rejoined" at each
// A control that asks, or asks what would be taken, appends "event PID KIND" for each event that
// batond reports.
// A keeper takes all other changes of a running keeper's configuration.
// Every life appends "keeper PID NOTE" or "control PID NOTE" to the file FAKE_LOG. Each
// configuration that a keeper is asked to take appends "taken PID LISTENERS", or "late PID
// LISTENERS" if its time is over: it is taken all the same, as by a keeper of a former release.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "lib/base/clock.h"
#include "lib/base/heartbeat.h"
#include "lib/base/program_start.h"
#include "lib/channel/message_channel.h"
#include "proto/baton/internal/batond.pb.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/config/next_batond.h"
#include "supervisor/config/state_files.h"
#include "supervisor/driver/batond_link.h"

namespace baton {
namespace {

[[noreturn]] void Die(const std::string& why) {
  std::cerr << "fake child: " << why << "\n";
  _exit(99);
}

int DescriptorFrom(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? -1 : std::atoi(text);
}

void Log(const std::string& role, const std::string& note) {
  const std::string line = absl::StrCat(role, " ", getpid(), " ", note, "\n");
  const char* path = std::getenv("FAKE_LOG");
  if (path == nullptr) Die("FAKE_LOG is not set");
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0 || write(file, line.data(), line.size()) < 0) Die("cannot write FAKE_LOG");
  close(file);
}

// Left open: the process holds it until it ends.
int Listen(const std::string& path) {
  absl::StatusOr<FileDescriptor> socket = ListenUnix(path, 8, 0600);
  if (!socket.ok()) Die(socket.status().ToString());
  return socket->Release();
}

int management_socket = -1;  // a keeper's

// Answers whoever asks the keeper to take a changed configuration.
void TakeConfigs(const std::string& mode, internal::KeeperConfig* in_force) {
  const FileDescriptor client(accept4(management_socket, nullptr, nullptr, SOCK_CLOEXEC));
  if (!client || mode == "deaf") return;
  MessageChannel channel{FileDescriptor(dup(client.get()))};
  internal::ManagementRequest request;
  if (!channel.Receive(&request, /*timeout_ms=*/10'000).ok()) return;
  v1::ServiceConfig* const service = in_force->mutable_service();
  const v1::ServiceConfig former = *service;
  *service = request.take_config().service();
  in_force->set_distrust_contained_root(request.take_config().distrust_contained_root());
  const bool in_time = MonotonicNanoseconds() < request.take_config().expires_ns();
  Log(in_time ? "taken" : "late", absl::StrCat(service->listeners_size()));
  internal::ManagementReply reply;
  reply.set_id(request.id());
  if (mode == "picky") {
    *service->mutable_listeners() = former.listeners();
    internal::Refused* const refused = reply.mutable_config_taken()->add_refused();
    refused->set_field("listeners");
    refused->set_why("the port is taken");
  }
  *reply.mutable_config_taken()->mutable_service() = *service;
  (void)channel.Send(reply);
}

// What batond says, or tells unasked, each on a line of the log without its spaces.
[[noreturn]] void TalkAboutConfiguration(const std::string& mode) {
  MessageChannel channel{FileDescriptor(DescriptorFrom("BATON_CONTROL_FD"))};
  internal::BatondRequest request;
  request.mutable_reload()->set_disconnect(mode == "disconnect");
  request.mutable_reload()->set_validate_only(mode == "validate");
  request.set_id(7);
  if (!channel.Send(request).ok()) Die("batond cannot be asked");
  for (;;) {
    internal::BatondReply reply;
    const absl::Status received = channel.Receive(&reply, /*timeout_ms=*/50);
    ShowLife();
    if (absl::IsDeadlineExceeded(received)) continue;
    if (!received.ok()) Die("batond does not answer");
    for (const v1::Event& event : reply.events()) Log("event", event.kind());
    if (reply.events_size() > 0) continue;
    std::string note = absl::StrCat(reply.id(), ":", reply.status_code());
    for (const std::string& field : reply.taken()) absl::StrAppend(&note, ";taken=", field);
    for (const auto& refused : reply.refused()) absl::StrAppend(&note, ";not=", refused.field());
    for (const uint32_t uid : reply.config().operator_uids()) absl::StrAppend(&note, ";uid=", uid);
    Log("control", note);
  }
}

// Logs, for each file in FAKE_OPEN, batond's answer and the first word in the file.
void AskForFiles() {
  MessageChannel channel{FileDescriptor(DescriptorFrom("BATON_CONTROL_FD"))};
  std::istringstream paths(std::getenv("FAKE_OPEN"));
  for (std::string path; paths >> path;) {
    internal::BatondRequest request;
    request.set_id(7);
    constexpr std::string_view kProgram = "program:";
    path.starts_with(kProgram) ? request.mutable_open()->set_program(path.substr(kProgram.size()))
                               : request.mutable_open()->set_path(path);
    internal::BatondReply reply;
    std::vector<FileDescriptor> files;
    if (!channel.Send(request).ok() || !channel.Receive(&reply, -1, &files).ok()) {
      Die("batond does not answer");
    }
    char text[32] = {};
    if (!files.empty() && read(files[0].get(), text, sizeof(text) - 1) < 0) Die("read");
    Log("control", absl::StrCat(reply.status_code(), ":", files.size(), ":", text));
  }
}

internal::RejoinRequest introduction;  // a control's

// Shows that it lives, and finds the next batond when this one is gone, as control does.
[[noreturn]] void OutliveBatond() {
  NextBatond next(ControlRejoinSocketPath(introduction.control().state_dir()),
                  DescriptorFrom(kControlLockVariable),
                  FileDescriptor(DescriptorFrom(kStayVariable)));
  std::optional<NextBatond::Welcome> batond;
  for (bool alone = false;; usleep(10'000)) {
    alone = alone || !ShowLife();
    if (!alone) continue;
    if (!next.CheckOneMayCome().ok()) _exit(0);
    auto found = next.Look(introduction);
    if (!found.ok() || !*found) continue;
    batond = std::move(*found);
    SetHeart(batond->heart.Release());
    alone = false;
    Log("control", "rejoined");
  }
}

// Makes the sockets that the configuration on standard input asks for. Returns that of a keeper.
internal::KeeperConfig MakeSockets(bool keeper) {
  const std::string text((std::istreambuf_iterator<char>(std::cin)), {});
  if (keeper) {
    internal::KeeperConfig config;
    if (!google::protobuf::TextFormat::ParseFromString(text, &config)) Die("no KeeperConfig");
    Listen(WorkerSocketPath(config.state_dir(), config.service().name()));
    management_socket = Listen(ManagementSocketPath(config.state_dir(), config.service().name()));
    (void)fcntl(management_socket, F_SETFL, O_NONBLOCK);
    return config;
  } else {
    internal::ControlConfig config;
    if (!google::protobuf::TextFormat::ParseFromString(text, &config)) Die("no ControlConfig");
    // batond has made control's sockets, which live as long as who holds them.
    if (DescriptorFrom("BATON_OPERATOR_SOCKET_FD") < 0 ||
        DescriptorFrom("BATON_WORKER_SOCKET_FD") < 0) {
      Die("control has no sockets");
    }
    *introduction.mutable_control() = config;
    return {};
  }
}

int Main(const std::string& program) {
  const bool keeper = program.ends_with("baton-driver") || program.ends_with("baton-keeper");
  const std::string role = keeper ? "keeper" : "control";
  signal(SIGPIPE, SIG_IGN);  // batond may be gone
  const internal::KeeperConfig config = MakeSockets(keeper);
  const std::string& service = config.service().name();
  const char* given = std::getenv(keeper ? "FAKE_KEEPER" : "FAKE_CONTROL");
  const char* of_service = std::getenv(("FAKE_KEEPER_" + service).c_str());
  if (of_service != nullptr) given = of_service;
  const std::string mode = given == nullptr ? "" : given;
  if (mode == "absent") {
    const bool is_there = access((std::getenv("FAKE_LOG") + std::string(".go")).c_str(), F_OK) == 0;
    SetDownReason(config.state_dir(), service, is_there ? "" : "no device");
    if (!is_there) return 3;
  }
  Log(role, "started");
  if (mode == "exit") return 3;
  if (mode == "crash") raise(SIGKILL);
  if (mode == "stubborn") signal(SIGTERM, SIG_IGN);
  if (mode == "slow") {
    while (access((std::getenv("FAKE_LOG") + std::string(".go")).c_str(), F_OK) != 0) usleep(1000);
    signal(SIGTERM, [](int) {
      Log("keeper", "asked");
      _exit(0);
    });
  }
  const bool outlives = mode == "outlives";
  if (outlives) prctl(PR_SET_PDEATHSIG, 0);
  const char ready = static_cast<char>(outlives ? Readiness::kOutlivesBatond : Readiness::kServes);
  if (mode != "hang" && write(DescriptorFrom("BATON_READY_FD"), &ready, 1) != 1 && errno != EPIPE) {
    Die("not ready");
  }
  if (outlives) OutliveBatond();
  if (mode == "fragile") return 0;
  if (mode == "reload" || mode == "disconnect" || mode == "validate") TalkAboutConfiguration(mode);
  if (mode == "open") AskForFiles();
  if (mode == "restart" || mode == "report") {
    ShowLife(mode == "restart" ? AfterLastSign::kRestart : AfterLastSign::kReport);
    Log("sign", "shown");
  }
  if (!keeper) {
    for (;; usleep(50'000)) ShowLife(AfterLastSign::kAsBefore, mode == "keeper_hangs");
  }
  driver_process::BatondLink batond = driver_process::BatondLink::OfEnvironment(config);
  batond.SetKeeperHangs(mode == "keeper_hangs");
  internal::KeeperConfig in_force = config;
  for (;; usleep(50'000)) {
    batond.Beat();
    TakeConfigs(mode, &in_force);
    batond.SetConfig(in_force);
  }
}

}  // namespace
}  // namespace baton

int main(int, char** argv) { return baton::Main(argv[0]); }
