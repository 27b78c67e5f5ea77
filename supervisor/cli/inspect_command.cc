#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/channel/message_channel.h"
#include "prometheus/text_serializer.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/description.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/cli/terminal.h"
#include "supervisor/config/state_files.h"
#include "supervisor/inspect/arena_view.h"
#include "supervisor/inspect/snapshot_file.h"
#include "supervisor/inspect/source.h"
#include "supervisor/inspect/state_decoder.h"
#include "supervisor/metrics/families.h"

namespace baton {
namespace {
using inspect::ArenaView;

constexpr int kKeeperTimeoutMs = 1000;
// The time for all states of one answer together.
constexpr std::chrono::seconds kDecoderTime{20};

struct InspectTarget {
  std::string service;
  int pid = 0;
  std::string offline;
};

struct InspectFlags {
  InspectTarget target;
  inspect::Selection selection;
  InspectionParts parts;
  bool metrics = false;
  std::string decoder;
};

struct SnapshotFlags {
  InspectTarget target;
  std::string file;
  inspect::SnapshotOptions options;
};

// Finds services by their keepers' sockets, so that it works without control.
absl::StatusOr<std::vector<std::string>> ServicesIn(const std::string& state_dir) {
  const std::string suffix = ManagementSocketPath("", "").substr(1);
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(state_dir, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(suffix) || name == suffix) continue;
    names.push_back(name.substr(0, name.size() - suffix.size()));
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("name a service: ", state_dir, ", which would tell, cannot be read (",
                     error.message(), "); --state-dir names another directory"));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Sets the name of the only service if the command line names no service, process or file.
absl::Status ChooseArena(const Invocation& invocation, InspectTarget* target) {
  if (!target->service.empty() || !target->offline.empty() || target->pid != 0) {
    return absl::OkStatus();
  }
  const std::string state_dir = invocation.StateDir();
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> names, ServicesIn(state_dir));
  if (names.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "name a service: there ",
        names.empty()
            ? absl::StrCat("is none in ", state_dir, "; --state-dir names another directory")
            : absl::StrCat("are ", absl::StrJoin(names, ", "))));
  }
  target->service = names.front();
  return absl::OkStatus();
}

// If only one of [SERVICE] and FILE was typed, takes it as the file, unless it is the name of a
// service.
absl::Status ChooseFile(const Invocation& invocation, SnapshotFlags* flags) {
  if (!flags->file.empty()) return absl::OkStatus();
  const auto names = ServicesIn(invocation.StateDir());
  const bool named =
      names.ok() && std::find(names->begin(), names->end(), flags->target.service) != names->end();
  if (named || flags->target.service.empty()) {
    return absl::InvalidArgumentError("name the FILE to save it in: baton snapshot [SERVICE] FILE");
  }
  flags->file.swap(flags->target.service);
  return absl::OkStatus();
}

absl::StatusOr<ArenaView> OpenTarget(const Invocation& invocation, const InspectTarget& target) {
  if (!invocation.tls.address.empty()) {
    return absl::InvalidArgumentError(
        "--address: arenas are looked into on their own machine; run this there");
  }
  BATON_ASSIGN_OR_RETURN(inspect::ArenaFiles files,
                         !target.offline.empty() ? inspect::OpenSnapshot(target.offline)
                         : target.pid != 0
                             ? inspect::ArenaOfProcess(target.pid, target.service)
                             : inspect::FindArena(invocation.StateDir(), target.service));
  return ArenaView::Open(std::move(files), target.service);
}

// ---------------------------------------------------------------- the decoder

struct Configured {
  v1::StateDecoder decoder;
  uint32_t uid;  // of the process that reported it
};

// The service's keeper says which program decodes its state. Control is not asked, because it is
// exposed to the network and must not choose a program that is run here.
absl::StatusOr<Configured> ConfiguredDecoder(const Invocation& invocation,
                                             const std::string& service) {
  BATON_ASSIGN_OR_RETURN(
      FileDescriptor socket,
      ConnectUnix(ManagementSocketPath(invocation.StateDir(), service), kKeeperTimeoutMs));
  BATON_ASSIGN_OR_RETURN(const PeerCredentials keeper, GetPeerCredentials(socket.get()));
  MessageChannel channel(std::move(socket));
  internal::ManagementRequest request;
  request.mutable_describe();
  BATON_RETURN_IF_ERROR(channel.Send(request, {}, kKeeperTimeoutMs));
  internal::ManagementReply reply;
  BATON_RETURN_IF_ERROR(channel.Receive(&reply, kKeeperTimeoutMs));
  return Configured{reply.description().service().state_decoder(), keeper.uid};
}

// The process that listens names the program, so it must belong to root or to this process's user.
absl::Status CheckTrusted(const Configured& configured) {
  if (configured.uid == 0 || configured.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(configured.decoder.program(),
                                                  " is configured by user ", configured.uid,
                                                  " and not run for you"));
}

// Returns a decoder without a program if none is to be run.
absl::StatusOr<v1::StateDecoder> ChooseDecoder(const Invocation& invocation,
                                               const InspectFlags& flags) {
  v1::StateDecoder named;
  named.set_program(flags.decoder);
  const InspectTarget& target = flags.target;
  if (!flags.decoder.empty() || !target.offline.empty() || target.pid != 0) return named;
  BATON_ASSIGN_OR_RETURN(const Configured configured,
                         ConfiguredDecoder(invocation, target.service));
  if (!configured.decoder.program().empty()) BATON_RETURN_IF_ERROR(CheckTrusted(configured));
  return configured.decoder;
}

inspect::DecodeState DecodeWith(const v1::StateDecoder& decoder, const std::string& service) {
  const auto deadline = std::chrono::steady_clock::now() + kDecoderTime;
  return [decoder, service,
          deadline](const inspect::CommittedState& state) -> absl::StatusOr<std::string> {
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the states before took ", kDecoderTime.count(), " s: --connection chooses one"));
    }
    return inspect::RunStateDecoder(decoder, service, state);
  };
}

// ---------------------------------------------------------------- inspect

absl::Status Inspect(Invocation* invocation, InspectFlags flags) {
  if (flags.target.pid != 0 && !flags.target.offline.empty()) {
    return absl::InvalidArgumentError("--pid and --offline: only one of them is possible");
  }
  inspect::Selection& selection = flags.selection;
  if (selection.shard && selection.connection) {
    return absl::InvalidArgumentError("--shard and --connection: only one of them is possible");
  }
  BATON_RETURN_IF_ERROR(ChooseArena(*invocation, &flags.target));
  BATON_ASSIGN_OR_RETURN(const ArenaView arena, OpenTarget(*invocation, flags.target));
  selection.work_requests = flags.parts.work_requests;
  selection.state = flags.parts.state;
  selection.connections =
      selection.shard || flags.parts.queues || selection.work_requests || selection.state;
  if (selection.state) {
    const absl::StatusOr<v1::StateDecoder> decoder = ChooseDecoder(*invocation, flags);
    if (!decoder.ok()) {
      invocation->err << "warning: state is not decoded: " << decoder.status().message()
                      << "; --decoder names a program\n";
    } else if (!decoder->program().empty()) {
      selection.decode = DecodeWith(*decoder, arena.service);
    }
  }
  const bool of_file = !arena.files.file.empty();
  const uint64_t now = of_file ? arena.files.saved_monotonic_ns : MonotonicNanoseconds();
  BATON_ASSIGN_OR_RETURN(const v1::Inspection inspection, inspect::Inspect(arena, selection, now));
  if (flags.metrics) {
    prometheus::TextSerializer().Serialize(invocation->out, metrics::ArenaFamilies(inspection));
  } else if (invocation->json) {
    return invocation->PrintJson(inspection);
  } else {
    PrintInspection(invocation->out, inspection, flags.parts, invocation->style);
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- snapshot

absl::Status Snapshot(Invocation* invocation, SnapshotFlags flags) {
  BATON_RETURN_IF_ERROR(ChooseFile(*invocation, &flags));
  BATON_RETURN_IF_ERROR(ChooseArena(*invocation, &flags.target));
  BATON_ASSIGN_OR_RETURN(const ArenaView arena, OpenTarget(*invocation, flags.target));
  if (flags.target.pid == 0) {
    const auto configured = ConfiguredDecoder(*invocation, arena.service);
    if (configured.ok()) flags.options.decoder = configured->decoder.program();
  }
  absl::StatusOr<uint64_t> bytes;
  {
    const Progress progress(invocation, absl::StrCat("saving ", flags.file),
                            "its bytes are on disk");
    bytes = inspect::SaveSnapshot(arena, flags.file, flags.options);
  }
  BATON_RETURN_IF_ERROR(bytes.status());
  const std::string saved = absl::StrCat("saved ", flags.file, ": ", FormatBytes(*bytes),
                                         " of service ", Printable(arena.service), " from process ",
                                         arena.files.pid, " (", Printable(arena.files.program), ")",
                                         "; what went on meanwhile is not of one instant");
  invocation->err << invocation->Message("", saved) << '\n';
  invocation->PrintNext(absl::StrCat("`baton inspect --offline ", flags.file, "` looks into it"));
  return absl::OkStatus();
}

template <typename Number>
CLI::Option* AddInspectNumber(CLI::App* command, const char* name, Number& number,
                              const char* help) {
  return command->add_option(name, number, help)->type_name("N");
}

void AddTarget(CLI::App* command, InspectTarget* target) {
  AddInspectNumber(command, "--pid", target->pid, "process that has the arena [the driver]")
      ->check(CLI::PositiveNumber.description(""));
}

void AddInspect(CLI::App* app, Invocation* invocation) {
  CLI::App* command = app->add_subcommand(
      "inspect",
      "Look into a service's arena.\n"
      "Nobody is disturbed, and control is not needed; for root and batond's user. What changes is "
      "called \"changing\", what cannot be so \"invalid\".");
  auto flags = std::make_shared<InspectFlags>();
  command->add_option("service", flags->target.service, "whose arena [the only one]");
  AddTarget(command, &flags->target);
  command->add_option("--offline", flags->target.offline, "what `baton snapshot` has saved")
      ->type_name("FILE");
  AddInspectNumber(command, "--shard", flags->selection.shard, "this one and its connections");
  AddInspectNumber(command, "--connection", flags->selection.connection, "this one");
  command->add_flag("--queues", flags->parts.queues, "cursors of the connections' queues");
  command->add_flag("--work-requests", flags->parts.work_requests, "those outstanding, decoded");
  command->add_flag("--state", flags->parts.state, "application state: hexadecimal, or decoded");
  command->add_option("--decoder", flags->decoder, "program that prints it [the service's]")
      ->type_name("PATH");
  command->add_flag("--metrics", flags->metrics, "for Prometheus, what an arena knows of them");
  AddInspectNumber(command, "--start", flags->selection.first_connection,
                   "first connection to show [0]");
  AddInspectNumber(command, "--limit", flags->selection.limit, "connections to show at most [100]")
      ->check(CLI::Range(1u, 65536u).description(""));
  OnChosen(command, invocation, flags, Inspect);
}

void AddSnapshot(CLI::App* app, Invocation* invocation) {
  CLI::App* command = app->add_subcommand("snapshot",
                                          "Save a service's arena for `baton inspect --offline`.\n"
                                          "Of a service that runs it is not one instant.");
  command->footer("The file has application state, and is made for you alone (mode 0600).");
  auto flags = std::make_shared<SnapshotFlags>();
  command->add_option("service", flags->target.service, "whose arena [the only one]");
  command->add_option("file", flags->file, "where to save it")->group(kNeeded);
  AddTarget(command, &flags->target);
  command->add_flag("--buffers", flags->options.buffers, "with the buffers, too");
  command->add_flag("--force", flags->options.overwrite, "overwrite a file that is there");
  OnChosen(command, invocation, flags, Snapshot);
}

}  // namespace

void AddInspectCommands(CLI::App* app, Invocation* invocation) {
  AddInspect(app, invocation);
  AddSnapshot(app, invocation);
}

}  // namespace baton
