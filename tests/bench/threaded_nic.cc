#include "tests/bench/threaded_nic.h"

#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

#include "lib/base/check.h"
#include "lib/base/status.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/nic/loopback_link.h"

namespace baton::bench {

absl::StatusOr<NicClient> MakeNicClient() {
  NicClient made;
  for (FileDescriptor NicSockets::*const socket : {&NicSockets::objects, &NicSockets::ids}) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      return ErrnoStatus(errno, "socketpair");
    }
    (made.client.*socket).Reset(ends[0]);
    (made.nic.*socket).Reset(ends[1]);
  }
  return made;
}

absl::StatusOr<std::unique_ptr<verbs::Device>> OpenDevice(NicSockets sockets) {
  return verbs::soft::OpenSoftDevice(std::move(sockets.objects), std::move(sockets.ids));
}

absl::StatusOr<std::unique_ptr<ThreadedNic>> ThreadedNic::Start(std::vector<NicSockets> clients) {
  auto nic = std::make_unique<ThreadedNic>();
  BATON_ASSIGN_OR_RETURN(nic->nic_,
                         nic::Nic::Make(nic::WithLoopback(), [](const std::string& what) {
                           BATON_CHECK(what.empty());  // a client is wrong
                         }));
  for (NicSockets& client : clients) {
    BATON_RETURN_IF_ERROR(nic->nic_->Add(std::move(client.objects)));
    BATON_RETURN_IF_ERROR(nic->nic_->Add(std::move(client.ids)));
  }
  nic->Resume();
  return nic;
}

void ThreadedNic::Resume() {
  stop_.store(false);
  thread_ = std::thread([this] {
    while (!stop_.load()) nic_->Progress();
  });
}

void ThreadedNic::Stop() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

}  // namespace baton::bench
