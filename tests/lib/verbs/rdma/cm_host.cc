// A host for cm_succession_test.cc: it opens the device, has all queues, and changes queue pairs as
// it is told. It has no connection ids and no librdmacm. It is executed, with its socket as the
// argument.
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "lib/base/check.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/rdma/cm_message.h"

namespace baton::verbs::rdma {
namespace {

constexpr size_t kSlotBytes = 256;
constexpr int kReceives = 4;  // of each queue pair
constexpr size_t kBytes = 1 << 20;
constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

class Host {
 public:
  explicit Host(int socket) : socket_(socket) {}
  void Run() {
    CmMessage message;
    while (ReceiveMessage(socket_, &message, nullptr)) {
      std::vector<int> given;
      message.error = Do(&message, &given);
      if (!SendMessage(socket_, message, given)) return;
    }
  }

 private:
  int Do(CmMessage* m, std::vector<int>* given) {
    switch (m->order) {
      case CmOrder::kOpenDevice:
        Open();
        given->assign({context_->cmd_fd, memfd_.get()});
        m->id = domain_->handle;
        m->number = kBytes;
        for (int i = 0; i < kQueuePairs; ++i) m->ids[i] = queue_pairs_[i]->qp_num;
        return 0;
      case CmOrder::kModify:
        return ibv_modify_qp(queue_pairs_[m->slot], &m->attributes.attributes, m->attributes.mask);
      case CmOrder::kAnswer:
        return Answer(m);
      case CmOrder::kState: {
        ibv_qp_init_attr initial = {};
        return ibv_query_qp(queue_pairs_[m->slot], &m->attributes.attributes, IBV_QP_STATE,
                            &initial);
      }
      case CmOrder::kRead:
        std::memcpy(m->text, memory_ + m->number, sizeof(m->text));
        return 0;
      default:
        return ENOSYS;
    }
  }

  void Open() {
    int count = 0;
    ibv_device** const devices = ibv_get_device_list(&count);
    BATON_CHECK(devices != nullptr && count > 0);
    context_ = ibv_open_device(devices[0]);
    BATON_CHECK(context_ != nullptr);
    memfd_.Reset(memfd_create("host", MFD_CLOEXEC));
    BATON_CHECK(memfd_ && ftruncate(memfd_.get(), kBytes) == 0);
    memory_ = static_cast<char*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_.get(), 0));
    BATON_CHECK(memory_ != MAP_FAILED);
    domain_ = ibv_alloc_pd(context_);
    BATON_CHECK(domain_ != nullptr);
    region_ = ibv_reg_mr(domain_, memory_, kBytes, IBV_ACCESS_LOCAL_WRITE);
    queue_ = ibv_create_cq(context_, 256, nullptr, nullptr, 0);
    BATON_CHECK(region_ != nullptr && queue_ != nullptr);
    for (int i = 0; i < kQueuePairs; ++i) MakeQueuePair(i);
  }

  // In INIT, with receives posted: the first message finds one.
  void MakeQueuePair(int index) {
    ibv_qp_init_attr initial = {};
    initial.send_cq = initial.recv_cq = queue_;
    initial.qp_type = IBV_QPT_RC;
    initial.sq_sig_all = 1;
    initial.cap = {kReceives, kReceives, 1, 1, 0};
    queue_pairs_[index] = ibv_create_qp(domain_, &initial);
    BATON_CHECK(queue_pairs_[index] != nullptr);
    ibv_qp_attr init = {};
    init.qp_state = IBV_QPS_INIT;
    init.port_num = 1;
    init.qp_access_flags = kAccess;
    BATON_CHECK(
        ibv_modify_qp(queue_pairs_[index], &init,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    for (int i = 0; i < kReceives; ++i) PostReceive(index, static_cast<uint64_t>(i));
  }

  char* Place(int index, uint64_t slot) {
    return memory_ + (static_cast<size_t>(index) * (kReceives + 1) + slot) * kSlotBytes;
  }
  ibv_sge At(const char* place) const {
    return {reinterpret_cast<uintptr_t>(place), kSlotBytes, region_->lkey};
  }
  void PostReceive(int index, uint64_t slot) {
    ibv_sge place = At(Place(index, slot));
    ibv_recv_wr request = {}, *bad = nullptr;
    request.wr_id = slot;
    request.sg_list = &place;
    request.num_sge = 1;
    BATON_CHECK(ibv_post_recv(queue_pairs_[index], &request, &bad) == 0);
  }

  int Answer(CmMessage* m) {
    const int index = static_cast<int>(m->slot);
    ibv_wc completion = {};
    if (!Await(index, &completion)) return ETIMEDOUT;
    if (completion.status != IBV_WC_SUCCESS) return EIO;
    char* const answer = Place(index, kReceives);
    std::memcpy(answer, m->text, kSlotBytes);
    std::memcpy(m->text, Place(index, completion.wr_id), kSlotBytes);
    PostReceive(index, completion.wr_id);
    ibv_sge place = At(answer);
    ibv_send_wr request = {}, *bad = nullptr;
    request.wr_id = kReceives;
    request.sg_list = &place;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    const int error = ibv_post_send(queue_pairs_[index], &request, &bad);
    if (error != 0) return error;
    if (!Await(index, &completion)) return ETIMEDOUT;
    return completion.status == IBV_WC_SUCCESS && completion.wr_id == kReceives ? 0 : EIO;
  }
  // The next completion of that queue pair. Those of others are of connections that have ended.
  bool Await(int index, ibv_wc* completion) {
    const auto deadline =
        std::chrono::steady_clock::now() + harness::Patient(std::chrono::seconds(2));
    while (std::chrono::steady_clock::now() < deadline) {
      const int count = ibv_poll_cq(queue_, 1, completion);
      BATON_CHECK(count >= 0);
      if (count == 0) {
        sched_yield();
      } else if (completion->qp_num == queue_pairs_[index]->qp_num) {
        return true;
      }
    }
    return false;
  }

  const int socket_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_cq* queue_ = nullptr;
  std::array<ibv_qp*, kQueuePairs> queue_pairs_ = {};
  FileDescriptor memfd_;
  char* memory_ = nullptr;
};

}  // namespace
}  // namespace baton::verbs::rdma

int main(int count, char** arguments) {
  BATON_CHECK(count == 2);
  baton::verbs::rdma::Host(std::atoi(arguments[1])).Run();
  return 0;
}
