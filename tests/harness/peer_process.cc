#include "tests/harness/peer_process.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"

namespace baton::harness {
namespace {

constexpr std::chrono::seconds kAnswer{15};
constexpr std::chrono::seconds kConnect{30};

}  // namespace

absl::StatusOr<std::unique_ptr<PeerProcess>> PeerProcess::Start(const PeerOptions& options) {
  ChildOptions child;
  child.program = options.program;
  child.log_path = options.log_path;
  child.arguments = {"--connect",      absl::StrCat("127.0.0.1:", options.port),
                     "--connections",  absl::StrCat(options.connections),
                     "--window",       absl::StrCat(options.window),
                     "--rate",         absl::StrCat(options.rate),
                     "--message-size", absl::StrCat(options.message_bytes),
                     "--json",         "--until-stdin-closes"};
  if (options.reconnect) child.arguments.push_back("--reconnect");
  if (!options.timeline_path.empty()) {
    child.arguments.insert(child.arguments.end(), {"--timeline", options.timeline_path});
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> process, ChildProcess::Start(child));
  BATON_RETURN_IF_ERROR(process->ReadLineWith("{\"event\":\"connected\"", kConnect).status());
  return std::unique_ptr<PeerProcess>(new PeerProcess(std::move(process)));
}

absl::StatusOr<PeerWindow> PeerProcess::Mark(const std::string& name) {
  BATON_RETURN_IF_ERROR(process_->WriteLine("mark " + name));
  BATON_ASSIGN_OR_RETURN(const std::string line, process_->ReadLineWith("{\"window\"", kAnswer));
  BATON_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::Parse(line));
  PeerWindow window;
  window.max_silence_us = json.Number("max_silence_us");
  window.messages = json.Count("messages");
  window.connections_with_reply = static_cast<uint32_t>(json.Count("connections_with_reply"));
  window.disconnects = json.Count("disconnects");
  for (size_t version = 1; version < window.last_versions.size(); ++version) {
    window.last_versions[version] =
        static_cast<uint32_t>(json.Count(absl::StrCat("last_versions.", version)));
  }
  window.seconds = json.Number("seconds");
  return window;
}

absl::Status PeerProcess::Settle(std::chrono::milliseconds timeout) {
  BATON_RETURN_IF_ERROR(process_->WriteLine("settle"));
  return process_->ReadLineWith("{\"settled\"", timeout).status();
}

absl::Status PeerProcess::SetRate(uint64_t rate) {
  BATON_RETURN_IF_ERROR(process_->WriteLine(absl::StrCat("rate ", rate)));
  return process_->ReadLineWith("{\"rate\"", kAnswer).status();
}

absl::StatusOr<JsonObject> PeerProcess::Stop(std::chrono::milliseconds timeout) {
  // A peer that stopped by itself takes no command, and has printed its result.
  process_->WriteLine("stop").IgnoreError();
  BATON_ASSIGN_OR_RETURN(const std::string line, process_->ReadLineWith("{\"final\"", timeout));
  BATON_RETURN_IF_ERROR(process_->WaitEnd(timeout).status());
  return JsonObject::Parse(line);
}

}  // namespace baton::harness
