#include "tests/simulation/keeper/sim_worker.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/version.h"

namespace baton::simulation {
namespace {

// In a second, so that a worker that does not resume its session is not taken for busy.
constexpr uint64_t kBeats = 1 << 15;

}  // namespace

std::optional<MessageChannel> Surroundings::Connect(const std::string& file, pid_t pid) const {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (pid != 0) machine.Name(socket.get(), pid);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = absl::StrCat(directory, "/", file);
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return std::nullopt;
  }
  return MessageChannel(std::move(socket));
}

bool SimWorker::IsStopRequested() const {
  const uint64_t requested = arena::LoadAcquire(around_.arena.header().stop_requested);
  return attached() && (requested >> slot_ & 1) != 0;
}

bool SimWorker::at_rest() const {
  if (!alive() || kind_ == kDeaf) return true;
  return tie_ == Tie::kUp && !asked_ && !dying_ && !wants_to_end_ && !IsStopRequested() &&
         (ready_ || kind_ == kNeverReady);
}

void SimWorker::Beat() {
  if (!alive()) channel_.reset();  // at the latest
  if (!alive() || hangs_ || !attached()) return;
  uint64_t& heartbeat = around_.arena.worker(slot_).heartbeat;
  arena::StoreRelaxed(heartbeat, heartbeat + kBeats);
}

void SimWorker::OnSignal(int signal) {
  around_.context.Note("a worker is sent a signal", static_cast<uint64_t>(process_.pid),
                       static_cast<uint64_t>(signal), id_);
  if (signal == SIGTERM) {
    dying_ |= kind_ != kDeaf && !hangs_;
    return;
  }
  // Its keeper may not do this to a worker that it has answered, and that does nothing wrong.
  const bool has_reason = has_reason_ || has_hung_ || dying_ || wants_to_end_ || !attached() ||
                          IsStopRequested() || process_.parent != 0;
  if (!has_reason) {
    around_.context.Break(absl::StrCat("K1: worker ", id_, " is killed, and nobody had a reason"));
  }
  dying_ = true;
}

void SimWorker::Die() {
  around_.context.Note("a worker dies", static_cast<uint64_t>(process_.pid), id_);
  dying_ = true;
  if (around_.context.dice.OneIn(2)) {
    channel_.reset();
  } else {
    around_.machine.End(process_);
  }
}

bool SimWorker::Step() {
  if (!alive()) return std::exchange(channel_, std::nullopt).has_value();
  if (dying_) {
    channel_.reset();
    around_.machine.End(process_);
    return true;
  }
  if (hangs_) return false;
  if (attached() && around_.engine.StepHandoff(id_)) return true;
  if (attached() && ready_ && OwnsShard() && kind_ == kCrashes) return Die(), true;
  if (attached() && ready_ && OwnsShard() && kind_ == kHangs) return Hang(true), true;
  switch (tie_) {
    case Tie::kNone:
    case Tie::kLost:
      return Reach();
    case Tie::kResuming:
      return Read();
    case Tie::kUp:
      return Read() || GoOn();
  }
  return false;
}

// ---------------------------------------------------------------- its keeper

bool SimWorker::Reach() {
  if (kind_ == kDeaf) return false;
  channel_ = around_.Connect("kv.sock", process_.pid);
  if (!channel_) return false;
  internal::WorkerRequest request;
  if (tie_ == Tie::kLost) {
    around_.context.Note("a worker resumes its session", id_);
    request.mutable_resume()->set_worker_id(id_);
    request.mutable_resume()->set_session_key(key_);
    tie_ = channel_->Enqueue(request).ok() ? Tie::kResuming : Tie::kLost;
    return true;
  }
  around_.context.Note("a worker attaches", static_cast<uint64_t>(process_.pid));
  internal::AttachArena& attach = *request.mutable_attach();
  attach.set_protocol_version(kProtocolVersion);
  attach.set_layout_version(arena::kLayoutVersion);
  attach.set_service("kv");
  attach.set_name("simulated");
  attach.set_version(process_.program.path());
  attach.set_resumes_session(true);
  tie_ = Tie::kUp;
  return Ask(std::move(request));
}

bool SimWorker::Ask(internal::WorkerRequest request) {
  request.set_number(++last_number_);
  asked_ = std::move(request);
  (void)channel_->Enqueue(*asked_);  // an end is seen when it reads
  return true;
}

bool SimWorker::Read() {
  const absl::Status filled = channel_->Fill();
  bool any = false;
  internal::WorkerReply reply;
  while (alive() && channel_) {
    const absl::StatusOr<bool> whole = channel_->NextFrame(&reply);
    if (!whole.ok() || !*whole) break;
    any = true;
    tie_ == Tie::kResuming ? OnResumed(reply) : OnReply(reply);
  }
  if (filled.ok() || !channel_ || !alive()) return any;
  OnKeeperGone();
  return true;
}

// One that has no answer to its attaching cannot go on, and ends.
void SimWorker::OnKeeperGone() {
  around_.context.Note("a worker has lost its keeper", static_cast<uint64_t>(process_.pid), id_);
  channel_.reset();
  tie_ = Tie::kLost;
  if (!attached()) Die();
}

void SimWorker::OnResumed(const internal::WorkerReply& reply) {
  around_.context.Note("a worker's session goes on", id_,
                       static_cast<uint64_t>(reply.status_code()));
  if (reply.status_code() != 0) {
    if (!may_have_detached() && !has_reason_) {
      around_.context.Break(
          absl::StrCat("K1: worker ", id_, " cannot resume its session: ", reply.status_message()));
    }
    return Die();
  }
  tie_ = Tie::kUp;
  if (asked_) (void)channel_->Enqueue(*asked_);
}

void SimWorker::OnReply(const internal::WorkerReply& reply) {
  const std::optional<internal::WorkerRequest> asked = std::exchange(asked_, std::nullopt);
  around_.context.Note("a worker is answered", static_cast<uint64_t>(process_.pid),
                       static_cast<uint64_t>(asked ? asked->request_case() : 0),
                       static_cast<uint64_t>(reply.status_code()));
  if (!asked) return around_.context.Break("K3: a worker is answered twice");
  if (reply.status_code() != 0) {
    // No room for it, or it was fenced.
    if (asked->has_attach() || asked->has_detach()) Die();
    return;
  }
  if (asked->has_attach()) OnAttached(reply.attached());
  if (asked->has_set_ready()) ready_ = true;
  if (asked->has_detach()) around_.machine.End(process_);
}

void SimWorker::OnAttached(const internal::Attached& attached) {
  id_ = attached.worker_id();
  slot_ = attached.worker_slot();
  key_ = attached.session_key();
  if (around_.engine.roster[slot_].id != id_) {
    around_.context.Break(absl::StrCat("K1: worker ", id_,
                                       " has attached, and the driver does not "
                                       "know it"));
  }
}

// ---------------------------------------------------------------- what it does by itself

bool SimWorker::GoOn() {
  if (asked_ || !attached()) return false;
  internal::WorkerRequest request;
  if (IsStopRequested() || wants_to_end_) {
    around_.engine.Release(id_);
    request.mutable_detach();
    return Ask(std::move(request));
  }
  if (!ready_) {
    if (kind_ == kNeverReady) return false;
    request.mutable_set_ready();
    return Ask(std::move(request));
  }
  if (asks_left_ == 0 || !around_.context.dice.OneIn(4)) return false;
  --asks_left_;
  if (around_.context.dice.OneIn(2)) {
    request.mutable_listen()->set_host("0.0.0.0");
    ++around_.listens;
  } else {
    request.mutable_new_token();
  }
  return Ask(std::move(request));
}

}  // namespace baton::simulation
