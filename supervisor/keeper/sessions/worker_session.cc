#include "supervisor/keeper/sessions/worker_session.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"

namespace baton::keeper {
namespace {

double SecondsSince(uint64_t then_ns) {
  return static_cast<double>(MonotonicNanoseconds() - then_ns) / 1e9;
}

// proc(5): "pid (comm) state ppid pgrp session tty_nr tpgid flags ...".
constexpr size_t kFlagsAfterComm = 6;
constexpr uint32_t kExiting = 0x4;  // Linux's PF_EXITING

bool SaysHealthy(const arena::Arena& arena, uint32_t slot) {
  return arena::LoadRelaxed(arena.worker(slot).unhealthy) == 0;
}

StateVersions VersionsOf(const internal::AttachArena& attach) {
  return {attach.reads_state_version_min(), attach.reads_state_version_max(),
          attach.writes_state_version()};
}

}  // namespace

internal::WorkerPlace PlaceOf(uint32_t slot, uint64_t worker_id) {
  internal::WorkerPlace place;
  place.set_slot(slot);
  place.set_id(worker_id);
  return place;
}

const WorkerInfo* FindWorker(const std::vector<WorkerInfo>& workers, uint64_t id) {
  const auto found = absl::c_find_if(workers, [id](const auto& worker) { return worker.id == id; });
  return found == workers.end() ? nullptr : &*found;
}

const WorkerInfo* FindProcess(const std::vector<WorkerInfo>& workers, pid_t pid) {
  const auto found =
      absl::c_find_if(workers, [pid](const auto& worker) { return worker.pid == pid; });
  return found == workers.end() ? nullptr : &*found;
}

void Heartbeat::Look(uint64_t beat, uint32_t patience) {
  if (beat == beat_) {
    silent_looks_ = std::min(silent_looks_ + 1, patience);
    return;
  }
  beat_ = beat;
  Restart();
}

void Heartbeat::Restart() {
  seen_ns_ = MonotonicNanoseconds();
  silent_looks_ = 0;
}

internal::HeldWorker WorkerSession::ToHeld() const {
  internal::HeldWorker held;
  *held.mutable_place() = Place();
  *held.mutable_attached_with() = attached_with;
  held.set_pid(peer.pid);
  held.set_uid(peer.uid);
  held.set_gid(peer.gid);
  held.set_session_key(key);
  held.set_process_certain(process_certain);
  held.set_distrusted(distrusted);
  held.set_ready(state == v1::WORKER_STATE_READY);
  held.set_retired(retired);
  held.set_attached_ns(attached_ns);
  return held;
}

void WorkerSession::GoOnFrom(const internal::HeldWorker& held, FileDescriptor pidfd) {
  id = held.place().id();
  slot = held.place().slot();
  attached = true;
  attached_with = held.attached_with();
  peer = {held.pid(), held.uid(), held.gid()};
  key = held.session_key();
  process.assign(pidfd.Release());
  process_certain = held.process_certain();
  distrusted = held.distrusted();
  state = held.ready() ? v1::WORKER_STATE_READY : v1::WORKER_STATE_ATTACHED;
  retired = held.retired();
  attached_ns = held.attached_ns();
  heartbeat.Restart();
}

WorkerInfo WorkerSession::Info(const arena::Arena& arena) const {
  return {id,
          slot,
          peer.pid,
          state == v1::WORKER_STATE_READY && !retired,
          SaysHealthy(arena, slot),
          hangs,
          attached_with.version(),
          VersionsOf(attached_with),
          attached_with.name(),
          peer.uid};
}

v1::Worker WorkerSession::Describe(const arena::Arena& arena) const {
  v1::Worker worker;
  worker.set_id(id);
  worker.set_name(attached_with.name());
  worker.set_version(attached_with.version());
  worker.set_library_release(attached_with.library_release());
  worker.set_state(state);
  worker.set_pid(peer.pid);
  worker.set_uid(peer.uid);
  worker.set_heartbeats(arena::LoadRelaxed(arena.worker(slot).heartbeat));
  worker.set_seconds_since_heartbeat(SecondsSince(heartbeat.seen_ns()));
  worker.set_reads_state_version_min(attached_with.reads_state_version_min());
  worker.set_reads_state_version_max(attached_with.reads_state_version_max());
  worker.set_writes_state_version(attached_with.writes_state_version());
  worker.set_attached_seconds(SecondsSince(attached_ns));
  worker.set_control_stream(control_stream != nullptr);
  worker.set_healthy(SaysHealthy(arena, slot));
  return worker;
}

absl::Status WorkerSession::Signal(int number) {
  if (!process_certain) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", peer.pid, " is not known to be the one that connected"));
  }
  if (SendSignal(process.native_handle(), number) || errno == ESRCH) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("pidfd_send_signal(", number, ")"));
}

bool WorkerSession::IsProcessDead() {
  if (!process.is_open()) return true;
  pollfd entry = {process.native_handle(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

bool WorkerSession::IsProcessEnding() {
  std::ifstream file(absl::StrCat("/proc/", peer.pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> words =
      absl::StrSplit(line.substr(line.rfind(')') + 1), ' ', absl::SkipEmpty());
  uint32_t flags = 0;
  if (words.size() <= kFlagsAfterComm || !absl::SimpleAtoi(words[kFlagsAfterComm], &flags)) {
    return true;
  }
  return (flags & kExiting) != 0 || IsProcessDead();  // else another may have the number by now
}

}  // namespace baton::keeper
