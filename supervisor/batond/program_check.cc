#include "supervisor/batond/program_check.h"

#include <signal.h>
#include <sys/wait.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/loop/await_readable.h"

extern "C" {  // which the header of glibc 2.36 forgets
#include <sys/pidfd.h>
}

namespace baton {

void ProgramCheck::Run(const OwnProgram& own, Done done) {
  if (done_) return done(absl::AbortedError("batond's program is being replaced already"));
  SpawnRequest request;
  request.program = program_ = own.path();
  request.arguments.assign(own.arguments().begin() + 1, own.arguments().end());
  request.arguments.emplace_back("--check");
  absl::StatusOr<SpawnedProcess> process = Spawn(request);
  if (!process.ok()) return done(process.status());
  process_ = *std::move(process);
  done_ = std::move(done);
  timer_.expires_after(kTimeout);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && process_.pidfd) pidfd_send_signal(process_.pidfd.get(), SIGKILL, nullptr, 0);
  });
  end_.assign(process_.pidfd.get());
  AwaitReadable(end_, [this] { OnEnd(); });
}

void ProgramCheck::OnEnd() {
  siginfo_t end = {};
  (void)waitid(P_PIDFD, static_cast<id_t>(process_.pidfd.get()), &end, WEXITED);
  Forget();
  const bool passed = end.si_code == CLD_EXITED && end.si_status == 0;
  std::exchange(done_, nullptr)(
      passed ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat(
                   program_, " --check ", DescribeEnd(end),
                   ": it would not run with this command line and configuration. What it printed "
                   "is in batond's log")));
}

void ProgramCheck::Forget() {
  timer_.cancel();
  if (end_.is_open()) end_.release();
  process_ = SpawnedProcess();
}

}  // namespace baton
