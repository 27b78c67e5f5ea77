#include "tests/harness/peer_process.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "tests/harness/wait_until.h"

namespace baton::harness {
namespace {

const google::protobuf::Value* Lookup(const google::protobuf::Struct& object,
                                      const std::string& path) {
  const size_t dot = path.find('.');
  const auto found = object.fields().find(path.substr(0, dot));
  if (found == object.fields().end()) return nullptr;
  if (dot == std::string::npos) return &found->second;
  if (!found->second.has_struct_value()) return nullptr;
  return Lookup(found->second.struct_value(), path.substr(dot + 1));
}

constexpr std::chrono::seconds kAnswer{15};
constexpr std::chrono::seconds kConnect{30};
// Both are long, because a machine may stand still for a while. A test that means less says so.
constexpr std::chrono::milliseconds kReplyLimit{60'000}, kDrainLimit{10'000};
constexpr std::chrono::milliseconds kLook{10};
constexpr char kFinal[] = "{\"final\"";

}  // namespace

absl::StatusOr<JsonObject> JsonObject::Parse(const std::string& text) {
  auto object = std::make_shared<google::protobuf::Struct>();
  const auto status = google::protobuf::util::JsonStringToMessage(text, object.get());
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("not a JSON object: ", text));
  JsonObject json;
  json.object_ = std::move(object);
  json.text_ = text;
  return json;
}

bool JsonObject::Has(const std::string& path) const { return Lookup(*object_, path) != nullptr; }

double JsonObject::Number(const std::string& path) const {
  const google::protobuf::Value* value = Lookup(*object_, path);
  return value == nullptr ? 0 : value->number_value();
}

bool JsonObject::Flag(const std::string& path) const {
  const google::protobuf::Value* value = Lookup(*object_, path);
  return value != nullptr && value->bool_value();
}

absl::StatusOr<std::unique_ptr<PeerProcess>> PeerProcess::Start(const PeerOptions& options) {
  ChildOptions child;
  child.program = options.program;
  child.log_path = options.log_path;
  child.arguments = {"--device",       options.fabric.device,
                     "--connect",      absl::StrCat(options.fabric.host, ":", options.port),
                     "--connections",  absl::StrCat(options.connections),
                     "--active",       absl::StrCat(options.active),
                     "--window",       absl::StrCat(options.window),
                     "--rate",         absl::StrCat(options.rate),
                     "--message-size", absl::StrCat(options.message_bytes),
                     "--json",         "--until-stdin-closes"};
  if (options.reconnect) child.arguments.emplace_back("--reconnect");
  if (!options.timeline_path.empty()) {
    child.arguments.insert(child.arguments.end(), {"--timeline", options.timeline_path});
  }
  child.arguments.insert(child.arguments.end(), options.arguments.begin(), options.arguments.end());
  for (const auto& [name, limit] : {std::pair("--reply-timeout-ms", kReplyLimit),
                                    std::pair("--drain-timeout-ms", kDrainLimit)}) {
    if (std::count(child.arguments.begin(), child.arguments.end(), name) > 0) continue;
    child.arguments.insert(child.arguments.end(), {name, absl::StrCat(Patient(limit).count())});
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> process, ChildProcess::Start(child));
  std::unique_ptr<PeerProcess> peer(new PeerProcess(std::move(process)));
  BATON_RETURN_IF_ERROR(peer->ReadAnswer("{\"event\":\"connected\"", kConnect).status());
  return peer;
}

absl::StatusOr<std::string> PeerProcess::ReadAnswer(const std::string& beginning,
                                                    std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + Patient(timeout);
  while (true) {
    BATON_ASSIGN_OR_RETURN(std::string line, process_->ReadLineBefore(deadline));
    if (line.starts_with(beginning)) return line;
    if (!line.starts_with(kFinal)) continue;
    result_ = line;
    return absl::AbortedError(absl::StrCat("the peer stopped by itself: ", line.substr(0, 400),
                                           "\n", process_->LogTail()));
  }
}

absl::StatusOr<PeerWindow> PeerProcess::Mark(const std::string& name) {
  BATON_RETURN_IF_ERROR(process_->WriteLine("mark " + name));
  BATON_ASSIGN_OR_RETURN(const std::string line, ReadAnswer("{\"window\"", kAnswer));
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
  window.spares = static_cast<uint32_t>(json.Count("spares"));
  window.seconds = json.Number("seconds");
  return window;
}

absl::Status PeerProcess::Settle(std::chrono::milliseconds timeout) {
  BATON_RETURN_IF_ERROR(process_->WriteLine("settle"));
  return ReadAnswer("{\"settled\"", timeout).status();
}

absl::Status PeerProcess::SettleActive(std::chrono::milliseconds timeout) {
  BATON_RETURN_IF_ERROR(process_->WriteLine("settle active"));
  return ReadAnswer("{\"settled\"", timeout).status();
}

absl::Status PeerProcess::AwaitSpares(uint32_t count, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + Patient(timeout);
  do {
    BATON_ASSIGN_OR_RETURN(const PeerWindow window, Mark("spares"));
    if (window.spares == count) return absl::OkStatus();
    std::this_thread::sleep_for(kLook);
  } while (std::chrono::steady_clock::now() < deadline);
  return absl::DeadlineExceededError("the connections to the standby do not come up");
}

absl::Status PeerProcess::SetRate(uint64_t rate) {
  BATON_RETURN_IF_ERROR(process_->WriteLine(absl::StrCat("rate ", rate)));
  return ReadAnswer("{\"rate\"", kAnswer).status();
}

absl::StatusOr<JsonObject> PeerProcess::Stop(std::chrono::milliseconds timeout) {
  if (result_.empty()) {
    // A peer that stops by itself at this moment takes no command, and prints its result.
    process_->WriteLine("stop").IgnoreError();
    BATON_ASSIGN_OR_RETURN(result_, ReadAnswer(kFinal, timeout));
  }
  BATON_RETURN_IF_ERROR(process_->WaitEnd(timeout).status());
  return JsonObject::Parse(result_);
}

absl::StatusOr<JsonObject> PeerProcess::StopChecked() {
  BATON_ASSIGN_OR_RETURN(JsonObject result, Stop());
  if (result.Flag("ok")) return result;
  return absl::DataLossError("a peer found: " + result.text().substr(0, 600));
}

}  // namespace baton::harness
