#include "tests/demo/workers.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"
#include "tests/harness/wait_until.h"

namespace baton::demo {

absl::StatusOr<Worker> Worker::Open(uint64_t id, int version, pid_t pid) {
  Worker worker;
  worker.id_ = id;
  worker.version_ = version;
  worker.pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!worker.pidfd_) {
    return ErrnoStatus(errno, absl::StrCat("cannot open the pidfd of worker ", id));
  }
  return worker;
}

absl::StatusOr<Worker> Worker::Own(std::unique_ptr<harness::LedgerWorker> started) {
  BATON_ASSIGN_OR_RETURN(Worker worker,
                         Open(started->id, started->version, started->process->pid()));
  worker.child_ = std::move(started->process);
  return worker;
}

absl::Status Worker::Signal(int signal) const {
  if (syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("cannot signal worker ", id_));
}

bool Worker::HasEnded() const {
  pollfd event = {pidfd_.get(), POLLIN, 0};
  return poll(&event, 1, 0) > 0;
}

absl::Status Worker::WaitEnd() const {
  return harness::WaitUntil(absl::StrCat("worker ", id_, " to end"), [&] { return HasEnded(); });
}

absl::Status Worker::Kill() const {
  BATON_RETURN_IF_ERROR(Signal(SIGKILL));
  return WaitEnd();
}

absl::Status Workers::OnHandoff() {
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(standby_->id()));
  std::swap(owner_, standby_);
  return AfterHandoff();
}

absl::Status Workers::OnDeath() {
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilOwner(standby_->id()));
  BATON_RETURN_IF_ERROR(cluster_->WaitUntilGone(owner_->id()));
  owner_ = std::move(standby_);
  return StandBy();
}

absl::StatusOr<Worker> Workers::Find(uint64_t id, int version) {
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse service, cluster_->GetService());
  for (const v1::Worker& worker : service.workers()) {
    if (worker.id() == id) return Worker::Open(id, version, worker.pid());
  }
  return absl::NotFoundError(absl::StrCat("worker ", id, " is gone"));
}

}  // namespace baton::demo
