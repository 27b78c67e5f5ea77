#include "tests/bench/echo_client.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton::bench {
namespace {

constexpr int kStepTimeoutMs = 10'000;

}  // namespace

absl::StatusOr<std::unique_ptr<EchoClient>> EchoClient::Create(const std::string& host,
                                                               uint16_t port,
                                                               uint32_t max_connections) {
  BATON_ASSIGN_OR_RETURN(EventChannel channel, OpenEventChannel());
  return std::unique_ptr<EchoClient>(
      new EchoClient(host, port, max_connections, std::move(channel)));
}

absl::Status EchoClient::Connect(uint32_t total, uint32_t under_way) {
  uint32_t established = group_ == nullptr ? 0 : group_->size();
  uint32_t begun = established;
  while (established < total) {
    for (; begun < std::min(total, established + under_way); ++begun) {
      BATON_RETURN_IF_ERROR(BeginOne());
    }
    BATON_RETURN_IF_ERROR(TakeEvent(&established));
  }
  return absl::OkStatus();
}

absl::Status EchoClient::BeginOne() {
  BATON_ASSIGN_OR_RETURN(CmId id, MakeId(channel_.get()));
  BATON_ASSIGN_OR_RETURN(sockaddr_in address, AddressOf(host_, port_));
  if (rdma_resolve_addr(id.get(), nullptr, reinterpret_cast<sockaddr*>(&address), kStepTimeoutMs) !=
      0) {
    return ErrnoStatus(errno, absl::StrCat("rdma_resolve_addr of ", host_));
  }
  (void)id.release();  // its events have it, until the group does
  return absl::OkStatus();
}

absl::Status EchoClient::TakeEvent(uint32_t* established) {
  pollfd fd = {channel_->fd, POLLIN, 0};
  if (poll(&fd, 1, kStepTimeoutMs) == 0) {
    return absl::DeadlineExceededError(absl::StrCat(
        "no step of a connection within ", kStepTimeoutMs, " ms, with ", *established, " made"));
  }
  BATON_ASSIGN_OR_RETURN(CmEventPointer event, NextEvent(channel_.get()));
  if (event == nullptr) return absl::OkStatus();
  rdma_cm_id* const id = event->id;
  const rdma_cm_event_type type = event->event;
  const int status = event->status;
  event.reset();
  switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (rdma_resolve_route(id, kStepTimeoutMs) == 0) return absl::OkStatus();
      return ErrnoStatus(errno, "rdma_resolve_route");
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      return Ask(id);
    case RDMA_CM_EVENT_ESTABLISHED:
      ++*established;
      return absl::OkStatus();
    default:
      return absl::UnavailableError(absl::StrCat("connection ", *established, ": ",
                                                 rdma_event_str(type), ", status ", status));
  }
}

absl::Status EchoClient::Ask(rdma_cm_id* id) {
  if (group_ == nullptr) {
    BATON_ASSIGN_OR_RETURN(group_, RawGroup::Create(id->verbs, max_connections_));
  }
  BATON_RETURN_IF_ERROR(group_->Add(CmId(id)).status());
  rdma_conn_param parameters = ConnectionParameters();
  return rdma_connect(id, &parameters) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "rdma_connect");
}

absl::StatusOr<Timing> EchoClient::Echo(uint32_t count, uint32_t active) {
  std::vector<uint32_t> took_ns;
  took_ns.reserve(count);
  const uint64_t began = MonotonicNanoseconds();
  uint64_t last = began;
  for (uint32_t i = 0; i < count; ++i) {
    BATON_RETURN_IF_ERROR(Exchange(i % active, i));
    const uint64_t now = MonotonicNanoseconds();
    took_ns.push_back(static_cast<uint32_t>(std::min<uint64_t>(now - last, UINT32_MAX)));
    last = now;
  }
  return TimingOf(last - began, took_ns);
}

// Until our send has completed, too: its slot is used again.
absl::Status EchoClient::Exchange(uint32_t connection, uint64_t number) {
  constexpr uint32_t kSlot = 0;
  std::memset(group_->sent(connection, kSlot), static_cast<int>(number & 0xff), kEchoBytes);
  std::memcpy(group_->sent(connection, kSlot), &number, sizeof(number));
  BATON_RETURN_IF_ERROR(group_->Send(connection, kSlot));
  bool sent = false, received = false;
  while (!sent || !received) {
    BATON_ASSIGN_OR_RETURN(const absl::Span<const RawGroup::Done> taken, group_->Poll());
    if (taken.empty()) sched_yield();
    for (const RawGroup::Done& done : taken) {
      if (done.connection != connection || (done.received ? received : sent)) {
        return absl::InternalError(absl::StrCat("a completion of connection ", done.connection,
                                                " while ", connection, " is asked"));
      }
      if (!done.received) {
        sent = true;
        continue;
      }
      received = true;
      if (std::memcmp(group_->received(connection, done.slot), group_->sent(connection, kSlot),
                      kEchoBytes) != 0) {
        return absl::InternalError(absl::StrCat("message ", number, " came back another one"));
      }
      BATON_RETURN_IF_ERROR(group_->Receive(connection, done.slot));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::bench
