#include "tests/lib/verbs/rdma/cm_side.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "lib/base/check.h"
#include "tests/harness/wait_until.h"

namespace baton::verbs::rdma {
namespace {

int ErrorOf(int result) { return result == 0 ? 0 : errno; }
int ErrorOf(const absl::Status& status) {
  if (status.ok()) return 0;
  const int error = CmErrno(status);
  return error == 0 ? -1 : error;  // refused without the kernel
}

class Library final : public CmSide {
 public:
  Library() : channel_(rdma_create_event_channel()) {
    BATON_CHECK(channel_ != nullptr);
    BATON_CHECK(fcntl(channel_->fd, F_SETFL, O_NONBLOCK) == 0);
  }
  ~Library() override {
    for (rdma_cm_id* id : ids_) {
      if (id != nullptr) rdma_destroy_id(id);
    }
    rdma_destroy_event_channel(channel_);
  }

  int Create(int* id) override {
    rdma_cm_id* made = nullptr;
    const int error = ErrorOf(rdma_create_id(channel_, &made, nullptr, RDMA_PS_TCP));
    if (error == 0) *id = Add(made);
    return error;
  }
  int Destroy(int id) override {
    return ErrorOf(rdma_destroy_id(std::exchange(ids_[id], nullptr)));
  }
  int Bind(int id, const Address& local) override {
    SocketAddress address = ToSocketAddress(local).value();
    return ErrorOf(rdma_bind_addr(ids_[id], address.get()));
  }
  int Listen(int id, int backlog) override { return ErrorOf(rdma_listen(ids_[id], backlog)); }
  int ResolveAddress(int id, const Address& peer, int timeout_ms) override {
    SocketAddress address = ToSocketAddress(peer).value();
    return ErrorOf(rdma_resolve_addr(ids_[id], nullptr, address.get(), timeout_ms));
  }
  int ResolveRoute(int id, int timeout_ms) override {
    return ErrorOf(rdma_resolve_route(ids_[id], timeout_ms));
  }
  int Connect(int id, const CmParameters& parameters) override {
    rdma_conn_param copy = Parameters(parameters);
    return ErrorOf(rdma_connect(ids_[id], &copy));
  }
  int Establish(int id) override { return ErrorOf(rdma_establish(ids_[id])); }
  int Accept(int id, const CmParameters& parameters) override {
    rdma_conn_param copy = Parameters(parameters);
    return ErrorOf(rdma_accept(ids_[id], &copy));
  }
  int Reject(int id, const std::string& private_data) override {
    return ErrorOf(rdma_reject(ids_[id], private_data.data(), uint8_t(private_data.size())));
  }
  int Disconnect(int id) override { return ErrorOf(rdma_disconnect(ids_[id])); }
  int Attributes(int id, ibv_qp_state state, CmQueuePairAttributes* attributes) override {
    *attributes = {};
    attributes->attributes.qp_state = state;
    return ErrorOf(rdma_init_qp_attr(ids_[id], &attributes->attributes, &attributes->mask));
  }
  int NotifyEstablished(int id) override {
    return ErrorOf(rdma_notify(ids_[id], IBV_EVENT_COMM_EST));
  }
  int SetTypeOfService(int id, uint8_t value) override {
    return Set(id, RDMA_OPTION_ID_TOS, &value, sizeof(value));
  }
  int SetReuseAddress(int id, bool reuse) override {
    int value = reuse;
    return Set(id, RDMA_OPTION_ID_REUSEADDR, &value, sizeof(value));
  }
  int SetAddressFamilyOnly(int id, bool only) override {
    int value = only;
    return Set(id, RDMA_OPTION_ID_AFONLY, &value, sizeof(value));
  }
  int SetAckTimeout(int id, uint8_t exponent) override {
    return Set(id, RDMA_OPTION_ID_ACK_TIMEOUT, &exponent, sizeof(exponent));
  }
  uint16_t Port(int id) override { return ntohs(rdma_get_src_port(ids_[id])); }

  bool Next(SideEvent* event) override {
    rdma_cm_event* given = nullptr;
    if (rdma_get_cm_event(channel_, &given) != 0) return false;
    *event = {};
    event->number = CmEventNumber{uint32_t{given->event}};
    event->status = given->status;
    const rdma_conn_param& from = given->param.conn;
    CmParameters& to = event->parameters;
    to.qp_num = from.qp_num;
    to.private_data_length = from.private_data_len;
    if (from.private_data != nullptr) {
      std::memcpy(to.private_data, from.private_data, from.private_data_len);
    }
    to.srq = from.srq;
    to.responder_resources = from.responder_resources;
    to.initiator_depth = from.initiator_depth;
    to.flow_control = from.flow_control;
    to.retry_count = from.retry_count;
    to.rnr_retry_count = from.rnr_retry_count;
    if (given->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      event->listener = Find(given->listen_id);
      event->id = Add(given->id);
    } else {
      event->id = Find(given->id);
    }
    rdma_ack_cm_event(given);
    return true;
  }
  int fd() const override { return channel_->fd; }

 private:
  int Add(rdma_cm_id* id) {
    ids_.push_back(id);
    return static_cast<int>(ids_.size()) - 1;
  }
  int Find(const rdma_cm_id* id) const {
    return static_cast<int>(std::find(ids_.begin(), ids_.end(), id) - ids_.begin());
  }
  int Set(int id, int name, void* value, size_t size) {
    return ErrorOf(rdma_set_option(ids_[id], RDMA_OPTION_ID, name, value, size));
  }
  static rdma_conn_param Parameters(const CmParameters& from) {
    rdma_conn_param to = {};
    to.private_data = from.private_data;
    to.private_data_len = from.private_data_length;
    to.qp_num = from.qp_num;
    to.srq = from.srq;
    to.responder_resources = from.responder_resources;
    to.initiator_depth = from.initiator_depth;
    to.flow_control = from.flow_control;
    to.retry_count = from.retry_count;
    to.rnr_retry_count = from.rnr_retry_count;
    return to;
  }

  rdma_event_channel* const channel_;
  std::vector<rdma_cm_id*> ids_;
};

class Client final : public CmSide {
 public:
  Client() : file_(CmFile::Open().value()) {}

  int Create(int* id) override {
    const auto made = file_.Create(numbers_.size() + 1);
    if (made.ok()) *id = Add(*made);
    return ErrorOf(made.status());
  }
  int Destroy(int id) override { return ErrorOf(file_.Destroy(numbers_[id]).status()); }
  int Bind(int id, const Address& local) override {
    return ErrorOf(file_.Bind(numbers_[id], ToSocketAddress(local).value()));
  }
  int Listen(int id, int backlog) override {
    return ErrorOf(file_.Listen(numbers_[id], static_cast<uint32_t>(backlog)));
  }
  int ResolveAddress(int id, const Address& peer, int timeout_ms) override {
    return ErrorOf(file_.ResolveAddress(numbers_[id], nullptr, ToSocketAddress(peer).value(),
                                        static_cast<uint32_t>(timeout_ms)));
  }
  int ResolveRoute(int id, int timeout_ms) override {
    return ErrorOf(file_.ResolveRoute(numbers_[id], static_cast<uint32_t>(timeout_ms)));
  }
  int Connect(int id, const CmParameters& parameters) override {
    return ErrorOf(file_.Connect(numbers_[id], parameters));
  }
  int Establish(int id) override { return ErrorOf(file_.Establish(numbers_[id])); }
  int Accept(int id, const CmParameters& parameters) override {
    return ErrorOf(file_.Accept(numbers_[id], static_cast<uint64_t>(id) + 1, parameters));
  }
  int Reject(int id, const std::string& private_data) override {
    return ErrorOf(file_.Reject(numbers_[id], CmRejection::kConsumerDefined, private_data));
  }
  int Disconnect(int id) override { return ErrorOf(file_.Disconnect(numbers_[id])); }
  int Attributes(int id, ibv_qp_state state, CmQueuePairAttributes* attributes) override {
    const auto answer = file_.QueuePairAttributes(numbers_[id], state);
    if (answer.ok()) *attributes = *answer;
    return ErrorOf(answer.status());
  }
  int NotifyEstablished(int id) override {
    const auto answer = file_.NotifyEstablished(numbers_[id]);
    if (!answer.ok()) return ErrorOf(answer.status());
    if (*answer == CmAnswer::kNone) return EINVAL;
    return *answer == CmAnswer::kEstablished ? EISCONN : 0;
  }
  int SetTypeOfService(int id, uint8_t value) override {
    return ErrorOf(file_.SetTypeOfService(numbers_[id], value));
  }
  int SetReuseAddress(int id, bool reuse) override {
    return ErrorOf(file_.SetReuseAddress(numbers_[id], reuse));
  }
  int SetAddressFamilyOnly(int id, bool only) override {
    return ErrorOf(file_.SetAddressFamilyOnly(numbers_[id], only));
  }
  int SetAckTimeout(int id, uint8_t exponent) override {
    return ErrorOf(file_.SetAckTimeout(numbers_[id], exponent));
  }
  uint16_t Port(int id) override {
    return FromSocketAddress(*file_.QueryAddresses(numbers_[id]).value().local.get()).port;
  }

  bool Next(SideEvent* event) override {
    CmEventSlot slot;
    const auto some = file_.NextEvent(&slot);
    BATON_CHECK(some.ok());
    if (!*some) return false;
    *event = {};
    event->number = slot.number();
    event->status = slot.status;
    event->parameters = slot.connection;
    const int named = static_cast<int>(slot.uid) - 1;
    if (event->number == CmEventNumber::kConnectRequest) {
      event->listener = named;
      event->id = Add(slot.id);
    } else {
      event->id = named;
    }
    return true;
  }
  int fd() const override { return file_.fd(); }

 private:
  int Add(uint32_t number) {
    numbers_.push_back(number);
    return static_cast<int>(numbers_.size()) - 1;
  }

  CmFile file_;
  std::vector<uint32_t> numbers_;
};

}  // namespace

std::unique_ptr<CmSide> ByLibrary() { return std::make_unique<Library>(); }
std::unique_ptr<CmSide> ByClient() { return std::make_unique<Client>(); }

bool Await(CmSide& side, SideEvent* event) {
  pollfd file = {side.fd(), POLLIN, 0};
  const auto limit = harness::Patient(std::chrono::milliseconds(5000));
  return poll(&file, 1, static_cast<int>(limit.count())) == 1 && side.Next(event);
}

}  // namespace baton::verbs::rdma
