// Connections outlive the process that made them, if a host has the queues and another process
// holds the rdma_cm files. The host and each keeper are executed. None of them is a fork of
// another: this process starts them all, and holds their files. Peers are librdmacm's.
// lib/verbs/rdma/cm.md has the conclusions. Needs an RDMA device, which the virtual machine has
// (//tests/vm:cm).
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/rdma/cm_peer.h"
#include "tests/lib/verbs/rdma/cm_side.h"

namespace baton::verbs::rdma {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kListenerUid = 1000;
constexpr uint64_t kHighestId = 1000;  // more ids than there are on the machine at a time
constexpr char kEstablishedEvent[] = "RDMA_CM_EVENT_ESTABLISHED status 0";
constexpr char kDisconnectedEvent[] = "RDMA_CM_EVENT_DISCONNECTED status 0";

std::string Host() { return std::getenv("BATON_TEST_HOST"); }

CmMessage Order(CmOrder order, uint32_t id = 0) {
  CmMessage message;
  message.order = order;
  message.id = id;
  return message;
}

// A keeper that has opened its file, which is held here unless it shall not be.
class Keeper : public CmProcess {
 public:
  explicit Keeper(int memory, bool held = true) : CmProcess("cm-keeper") {
    CmMessage map = Order(CmOrder::kMap);
    map.number = sizeof(CmKeeperMemory);
    EXPECT_EQ(Call(map, {memory}).error, 0);
    std::vector<FileDescriptor> files;
    EXPECT_EQ(Call(Order(CmOrder::kOpen), {}, &files).error, 0);
    EXPECT_EQ(files.size(), 1u);
    if (held && !files.empty()) file_ = std::move(files[0]);
  }
  // Stays open when the keeper is dead.
  int file() const { return file_.get(); }
  FileDescriptor TakeFile() { return std::move(file_); }
  void Drop() { file_.Reset(); }

 private:
  FileDescriptor file_;
};

class Succession : public ::testing::Test {
 protected:
  void SetUp() override {
    memfd_.Reset(memfd_create("keepers", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(memfd_.get(), sizeof(CmKeeperMemory)), 0);
    memory_ = static_cast<CmKeeperMemory*>(
        mmap(nullptr, sizeof(CmKeeperMemory), PROT_READ | PROT_WRITE, MAP_SHARED, memfd_.get(), 0));
    ASSERT_NE(memory_, MAP_FAILED);
    new (memory_) CmKeeperMemory;
    std::vector<FileDescriptor> files;
    const CmMessage device = host_.Call(Order(CmOrder::kOpenDevice), {}, &files);
    ASSERT_EQ(device.error, 0);
    ASSERT_EQ(files.size(), 2u);
    uverbs_ = std::move(files[0]);
    arena_ = std::move(files[1]);
    arena_bytes_ = device.number;
    domain_ = device.id;
    std::copy_n(device.ids, kQueuePairs, queue_pairs_.begin());
  }
  void TearDown() override { munmap(memory_, sizeof(CmKeeperMemory)); }

  std::unique_ptr<Keeper> StartKeeper(bool held = true) {
    return std::make_unique<Keeper>(memfd_.get(), held);
  }

  void Listen(Keeper& keeper) {
    CmMessage order = Order(CmOrder::kListen);
    order.uid = kListenerUid;
    order.number = 64;
    order.address = ToSocketAddress({Host(), 0}).value();
    const CmMessage answer = keeper.Call(order);
    ASSERT_EQ(answer.error, 0) << answer.text;
    listener_ = answer.id;
    const CmMessage port = keeper.Call(Order(CmOrder::kPort, listener_));
    ASSERT_EQ(port.error, 0) << port.text;
    port_ = static_cast<uint16_t>(port.number);
  }

  // Reads the next event into slot `slot`. False: there is none.
  bool Next(Keeper& keeper, uint32_t slot = 0, int wait_ms = 20000) {
    CmMessage order = Order(CmOrder::kNext);
    order.slot = slot;
    order.number = static_cast<uint64_t>(wait_ms);
    const CmMessage answer = keeper.Call(order);
    EXPECT_EQ(answer.error, 0) << answer.text;
    return answer.error == 0 && answer.number == 1;
  }
  const CmEventSlot& Slot(uint32_t slot = 0) const { return memory_->slots[slot]; }
  std::string PrivateData(uint32_t slot = 0) const {
    return reinterpret_cast<const char*>(Slot(slot).connection.private_data);
  }
  // The id of the next event, which is a request with this private data.
  uint32_t Request(Keeper& keeper, const std::string& private_data, uint32_t slot = 0) {
    EXPECT_TRUE(Next(keeper, slot));
    EXPECT_EQ(Slot(slot).number(), CmEventNumber::kConnectRequest);
    EXPECT_EQ(Slot(slot).uid, kListenerUid);
    EXPECT_EQ(PrivateData(slot), private_data);
    return Slot(slot).id;
  }

  // The host readies the queue pair by what the keeper has asked the id for.
  void MakeReady(Keeper& keeper, uint32_t id, int queue_pair) {
    for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS}) {
      CmMessage order = Order(CmOrder::kAttributes, id);
      order.attributes.attributes.qp_state = state;
      CmMessage answer = keeper.Call(order);
      ASSERT_EQ(answer.error, 0) << answer.text;
      answer.order = CmOrder::kModify;
      answer.slot = static_cast<uint32_t>(queue_pair);
      ASSERT_EQ(host_.Call(answer).error, 0);
    }
    EXPECT_EQ(StateOf(queue_pair), IBV_QPS_RTS);
  }
  ibv_qp_state StateOf(int queue_pair) {
    CmMessage order = Order(CmOrder::kState);
    order.slot = static_cast<uint32_t>(queue_pair);
    const CmMessage answer = host_.Call(order);
    EXPECT_EQ(answer.error, 0);
    return answer.attributes.attributes.qp_state;
  }
  void GiveAccept(Keeper& keeper, uint32_t id, int queue_pair) {
    CmMessage order = Order(CmOrder::kAccept, id);
    order.uid = static_cast<uint64_t>(queue_pair) + 1;
    order.parameters.qp_num = queue_pairs_[queue_pair];
    order.parameters.responder_resources = order.parameters.initiator_depth = 1;
    order.parameters.rnr_retry_count = 7;
    const CmMessage answer = keeper.Call(order);
    ASSERT_EQ(answer.error, 0) << answer.text;
  }
  // From a request to a connection that has carried data both ways.
  void Accept(Keeper& keeper, uint32_t id, int queue_pair, CmPeer& peer) {
    ASSERT_NO_FATAL_FAILURE(MakeReady(keeper, id, queue_pair));
    ASSERT_NO_FATAL_FAILURE(GiveAccept(keeper, id, queue_pair));
    EXPECT_EQ(peer.NextEvent(), kEstablishedEvent);
    ExpectEstablished(keeper, id, queue_pair);
    Talk(peer, queue_pair);
  }
  void ExpectEstablished(Keeper& keeper, uint32_t id, int queue_pair) {
    ASSERT_TRUE(Next(keeper));
    EXPECT_EQ(Slot().number(), CmEventNumber::kEstablished);
    EXPECT_EQ(Slot().id, id);
    EXPECT_EQ(Slot().uid, static_cast<uint64_t>(queue_pair) + 1);
  }
  // Connects `peer` through the keeper.
  uint32_t Connect(Keeper& keeper, CmPeer& peer, int queue_pair) {
    const std::string name = absl::StrCat("peer ", queue_pair);
    peer.Connect(Host(), port_, name);
    const uint32_t id = Request(keeper, name);
    Accept(keeper, id, queue_pair, peer);
    return id;
  }
  // Data go both ways. No keeper has to do with it.
  void Talk(CmPeer& peer, int queue_pair) {
    const std::string ask = absl::StrCat("ask ", ++talks_),
                      answer = absl::StrCat("answer ", talks_);
    CmMessage order = Order(CmOrder::kAnswer);
    order.slot = static_cast<uint32_t>(queue_pair);
    std::snprintf(order.text, sizeof(order.text), "%s", answer.c_str());
    ASSERT_TRUE(host_.Tell(order));
    peer.Send(ask);
    CmMessage heard;
    ASSERT_TRUE(host_.Hear(&heard, 60000));
    ASSERT_EQ(heard.error, 0);
    EXPECT_EQ(std::string(heard.text), ask);
    EXPECT_EQ(peer.Receive(), answer);
    EXPECT_FALSE(peer.HasEvent());
  }

  CmAnswer Notify(Keeper& keeper, uint32_t id) {
    const CmMessage answer = keeper.Call(Order(CmOrder::kNotify, id));
    EXPECT_EQ(answer.error, 0) << answer.text;
    return CmAnswer(answer.number);
  }

  // Takes all ids from these files. Returns which.
  std::set<uint32_t> TakeAll(Keeper& keeper, const std::vector<int>& files) {
    CmMessage order = Order(CmOrder::kTake, listener_);
    order.number = kHighestId;
    const CmMessage answer = keeper.Call(order, files);
    EXPECT_EQ(answer.error, 0) << answer.text;
    EXPECT_LE(answer.slot, static_cast<uint32_t>(kMostIds));
    return {answer.ids, answer.ids + answer.slot};
  }

  CmProcess host_{"cm-host"};
  FileDescriptor memfd_, uverbs_, arena_;
  uint64_t arena_bytes_ = 0;
  uint32_t domain_ = 0;
  std::array<uint32_t, kQueuePairs> queue_pairs_ = {};
  CmKeeperMemory* memory_ = nullptr;
  uint32_t listener_ = 0;
  uint16_t port_ = 0;
  int talks_ = 0;
};

TEST_F(Succession, shouldKeepEverythingOfAKeeperThatDies) {
  auto first = StartKeeper();
  ASSERT_NO_FATAL_FAILURE(Listen(*first));
  CmPeer established, read, unread, late, last;
  const uint32_t established_id = Connect(*first, established, 0);

  read.Connect(Host(), port_, "read, but unanswered");
  const uint32_t read_id = Request(*first, "read, but unanswered", /*slot=*/1);
  unread.Connect(Host(), port_, "unread");
  // The request has arrived when its event is there.
  pollfd readable = {first->file(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 20000), 1);
  ASSERT_TRUE(first->Kill());
  Talk(established, 0);
  late.Connect(Host(), port_, "while no keeper lives");
  Talk(established, 0);

  auto second = StartKeeper();
  const std::set<uint32_t> taken = TakeAll(*second, {first->file()});
  EXPECT_TRUE(taken.count(established_id));
  EXPECT_TRUE(taken.count(read_id));
  first->Drop();
  Talk(established, 0);
  const uint32_t unread_id = Request(*second, "unread");
  const uint32_t late_id = Request(*second, "while no keeper lives", /*slot=*/2);
  EXPECT_FALSE(Next(*second, 3, /*wait_ms=*/0));  // nothing of the one that was read
  EXPECT_EQ(Notify(*second, established_id), CmAnswer::kEstablished);
  for (const uint32_t id : {read_id, unread_id, late_id}) {
    EXPECT_EQ(Notify(*second, id), CmAnswer::kNone);
  }
  EXPECT_EQ(PrivateData(1), "read, but unanswered");
  EXPECT_EQ(Slot(1).id, read_id);

  Accept(*second, read_id, 1, read);
  Accept(*second, unread_id, 2, unread);
  CmMessage reject = Order(CmOrder::kReject, late_id);
  std::snprintf(reject.text, sizeof(reject.text), "no room");
  EXPECT_EQ(second->Call(reject).error, 0);
  EXPECT_EQ(late.NextEvent(), "RDMA_CM_EVENT_REJECTED status 28");
  // The adopted listener goes on to listen.
  const uint32_t last_id = Connect(*second, last, 3);
  for (int i = 0; i < 3; ++i) {
    Talk(established, 0);
    Talk(read, 1);
    Talk(unread, 2);
    Talk(last, 3);
  }

  // Adopted connections and others end in order.
  EXPECT_EQ(second->Call(Order(CmOrder::kDisconnect, established_id)).error, 0);
  EXPECT_EQ(established.NextEvent(), kDisconnectedEvent);
  last.Disconnect();
  ASSERT_TRUE(Next(*second));
  EXPECT_EQ(Slot().number(), CmEventNumber::kDisconnected);
  EXPECT_EQ(Slot().id, last_id);
  Talk(read, 1);
}

TEST_F(Succession, shouldTakeOverFromAKeeperThatLives) {
  auto first = StartKeeper();
  ASSERT_NO_FATAL_FAILURE(Listen(*first));
  CmPeer established, unread, next;
  Connect(*first, established, 0);
  unread.Connect(Host(), port_, "unread");
  pollfd readable = {first->file(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 20000), 1);

  auto second = StartKeeper();
  TakeAll(*second, {first->file()});
  EXPECT_FALSE(Next(*first, 3, /*wait_ms=*/0));
  EXPECT_EQ(first->Call(Order(CmOrder::kDisconnect, listener_)).error, EINVAL);
  Talk(established, 0);
  // It ends in order, with nothing left in its file.
  first.reset();
  Accept(*second, Request(*second, "unread"), 1, unread);
  Connect(*second, next, 2);
  Talk(established, 0);
}

// It leaves two files that have ids.
TEST_F(Succession, shouldTakeOverFromASuccessorThatDiesInTheMiddle) {
  auto first = StartKeeper();
  ASSERT_NO_FATAL_FAILURE(Listen(*first));
  CmPeer established, unread, between;
  const uint32_t established_id = Connect(*first, established, 0);
  unread.Connect(Host(), port_, "unread");
  pollfd readable = {first->file(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 20000), 1);
  ASSERT_TRUE(first->Kill());

  auto second = StartKeeper();
  ASSERT_EQ(second->Call(Order(CmOrder::kTakeOne, listener_), {first->file()}).error, 0);
  ASSERT_TRUE(second->Kill());
  between.Connect(Host(), port_, "between");
  Talk(established, 0);

  auto third = StartKeeper();
  EXPECT_TRUE(TakeAll(*third, {first->file(), second->file()}).count(established_id));
  first->Drop();
  second->Drop();
  Talk(established, 0);
  const uint32_t unread_id = Request(*third, "unread");
  const uint32_t between_id = Request(*third, "between");
  Accept(*third, unread_id, 1, unread);
  Accept(*third, between_id, 2, between);
  EXPECT_EQ(Notify(*third, established_id), CmAnswer::kEstablished);
}

// The first keeper dies between its accept and the peer's last word.
TEST_F(Succession, shouldFindOutWhatWasAccepted) {
  auto first = StartKeeper();
  ASSERT_NO_FATAL_FAILURE(Listen(*first));
  CmPeer accepted, unanswered;
  accepted.Connect(Host(), port_, "accepted");
  const uint32_t accepted_id = Request(*first, "accepted");
  unanswered.Connect(Host(), port_, "unanswered");
  const uint32_t unanswered_id = Request(*first, "unanswered");
  ASSERT_NO_FATAL_FAILURE(MakeReady(*first, accepted_id, 0));
  ASSERT_NO_FATAL_FAILURE(GiveAccept(*first, accepted_id, 0));
  ASSERT_TRUE(first->Kill());

  // The peer says its last word when it reads its event, which is later.
  auto second = StartKeeper();
  TakeAll(*second, {first->file()});
  EXPECT_EQ(Notify(*second, unanswered_id), CmAnswer::kNone);
  EXPECT_EQ(Notify(*second, accepted_id), CmAnswer::kAccepted);
  ExpectEstablished(*second, accepted_id, 0);
  EXPECT_EQ(Notify(*second, accepted_id), CmAnswer::kEstablished);
  EXPECT_EQ(accepted.NextEvent(), kEstablishedEvent);
  Talk(accepted, 0);
  Accept(*second, unanswered_id, 1, unanswered);
}

TEST_F(Succession, shouldCompleteTheConnectOfAKeeperThatDied) {
  auto first = StartKeeper();
  ASSERT_NO_FATAL_FAILURE(Listen(*first));
  CmPeer peer;
  CmMessage order = Order(CmOrder::kCreate);
  order.uid = 77;
  const uint32_t id = first->Call(order).id;
  order = Order(CmOrder::kResolve, id);
  order.address = ToSocketAddress({Host(), peer.Listen(Host())}).value();
  ASSERT_EQ(first->Call(order).error, 0);
  ASSERT_TRUE(Next(*first));
  ASSERT_EQ(Slot().number(), CmEventNumber::kAddressResolved);
  ASSERT_EQ(first->Call(Order(CmOrder::kRoute, id)).error, 0);
  ASSERT_TRUE(Next(*first));
  ASSERT_EQ(Slot().number(), CmEventNumber::kRouteResolved);
  order = Order(CmOrder::kConnect, id);
  order.parameters.qp_num = queue_pairs_[0];
  order.parameters.responder_resources = order.parameters.initiator_depth = 1;
  order.parameters.retry_count = 6;
  order.parameters.rnr_retry_count = 7;
  std::snprintf(reinterpret_cast<char*>(order.parameters.private_data), 16, "from a keeper");
  order.parameters.private_data_length = 14;
  ASSERT_EQ(first->Call(order).error, 0);
  ASSERT_TRUE(first->Kill());

  EXPECT_EQ(peer.AcceptFirst(), "from a keeper");
  auto second = StartKeeper();
  EXPECT_TRUE(TakeAll(*second, {first->file()}).count(id));
  ASSERT_TRUE(Next(*second));
  EXPECT_EQ(Slot().number(), CmEventNumber::kConnectResponse);
  EXPECT_EQ(Slot().uid, 77u);
  ASSERT_NO_FATAL_FAILURE(MakeReady(*second, id, 0));
  ASSERT_EQ(second->Call(Order(CmOrder::kEstablish, id)).error, 0);
  EXPECT_EQ(peer.NextEvent(), kEstablishedEvent);
  Talk(peer, 0);
}

// The negative control: the same death where nobody else holds the file.
TEST_F(Succession, shouldLoseEveryConnectionOfAFileThatNobodyHeld) {
  auto held = StartKeeper();
  ASSERT_NO_FATAL_FAILURE(Listen(*held));
  CmPeer spared;
  Connect(*held, spared, 0);

  auto alone = StartKeeper(/*held=*/false);
  ASSERT_NO_FATAL_FAILURE(Listen(*alone));
  CmPeer lost, lost_too, unanswered;
  Connect(*alone, lost, 1);
  Connect(*alone, lost_too, 2);
  unanswered.Connect(Host(), port_, "unanswered");
  Request(*alone, "unanswered");
  ASSERT_TRUE(alone->Kill());
  EXPECT_EQ(lost.NextEvent(), kDisconnectedEvent);
  EXPECT_EQ(lost_too.NextEvent(), kDisconnectedEvent);
  EXPECT_EQ(unanswered.NextEvent(), "RDMA_CM_EVENT_REJECTED status 28");
  CmPeer refused;
  refused.Connect(Host(), port_, "nobody");
  EXPECT_EQ(refused.NextEvent(), "RDMA_CM_EVENT_REJECTED status 8");

  ASSERT_TRUE(held->Kill());
  Talk(spared, 0);
  held->Drop();
  EXPECT_EQ(spared.NextEvent(), kDisconnectedEvent);
}

// Another process cannot use a file, and nor can its opener once it has executed a program in
// place.
TEST_F(Succession, shouldUseAFileOnlyInTheProcessAndProgramThatOpenedIt) {
  auto first = StartKeeper();
  ASSERT_NO_FATAL_FAILURE(Listen(*first));
  auto second = StartKeeper();
  EXPECT_EQ(second->Call(Order(CmOrder::kUseAnother), {first->file()}).error, EACCES);
  EXPECT_EQ(first->Call(Order(CmOrder::kPort, listener_)).error, 0);

  const CmMessage renewed = first->Call(Order(CmOrder::kRenew));
  ASSERT_EQ(renewed.error, 0) << renewed.text;
  EXPECT_EQ(first->Call(Order(CmOrder::kPort, listener_)).error, EACCES);
  TakeAll(*second, {first->file()});
  EXPECT_EQ(second->Call(Order(CmOrder::kPort, listener_)).number, port_);
}

// ---- Regions.

class Regions : public Succession {
 protected:
  static constexpr uint32_t kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  static constexpr uint64_t kOffset = 512 << 10;
  static constexpr uint64_t kAddress = uint64_t{1} << 40;  // where no process has memory
  static constexpr uint64_t kBytes = 8192;

  Region Register(Keeper& keeper, uint64_t offset = kOffset) {
    CmMessage map = Order(CmOrder::kMap);
    map.number = arena_bytes_;
    EXPECT_EQ(keeper.Call(map, {arena_.get()}).error, 0);
    CmMessage order = Order(CmOrder::kRegister, domain_);
    order.slot = kAccess;
    order.number = offset;
    order.region.address = kAddress + offset;
    order.region.bytes = kBytes;
    const CmMessage answer = keeper.Call(order, {uverbs_.get()});
    EXPECT_EQ(answer.error, 0) << answer.text;
    return answer.region;
  }
  CmMessage Find(Keeper& keeper, uint32_t handle) {
    CmMessage order = Order(CmOrder::kFindRegion);
    order.region.handle = handle;
    return keeper.Call(order, {uverbs_.get()});
  }
  int Destroy(Keeper& keeper, uint32_t handle) {
    CmMessage order = Order(CmOrder::kDestroyRegion);
    order.region.handle = handle;
    return keeper.Call(order).error;
  }
  std::string HostReads(uint64_t offset) {
    CmMessage order = Order(CmOrder::kRead);
    order.number = offset;
    return host_.Call(order).text;
  }
};

TEST_F(Regions, shouldBeMadeFoundAndDestroyedByHandleInProcessesThatDidNotOpenTheDevice) {
  auto first = StartKeeper();
  ASSERT_NO_FATAL_FAILURE(Listen(*first));
  CmPeer peer;
  const uint32_t id = Connect(*first, peer, 0);
  const Region region = Register(*first);
  EXPECT_NE(region.remote_key, 0u);
  EXPECT_EQ(peer.Write(region.address, region.remote_key, "to a keeper"), IBV_WC_SUCCESS);
  EXPECT_EQ(HostReads(kOffset), "to a keeper");

  // It outlives its maker, whose memory is gone.
  ASSERT_TRUE(first->Kill());
  EXPECT_EQ(peer.Write(region.address, region.remote_key, "to a dead keeper"), IBV_WC_SUCCESS);
  EXPECT_EQ(HostReads(kOffset), "to a dead keeper");

  auto second = StartKeeper();
  TakeAll(*second, {first->file()});
  const CmMessage found = Find(*second, region.handle);
  ASSERT_EQ(found.error, 0) << found.text;
  EXPECT_EQ(found.region.local_key, region.local_key);
  EXPECT_EQ(found.region.remote_key, region.remote_key);
  EXPECT_EQ(found.region.address, region.address);
  EXPECT_EQ(found.region.bytes, kBytes);
  // Nobody has recorded it: all handles are asked for.
  int found_again = 0;
  for (uint32_t handle = 0; handle < 256; ++handle) {
    const CmMessage other = Find(*second, handle);
    if (other.error == 0 && other.region.remote_key == region.remote_key) ++found_again;
    // EINVAL: it is the handle of something else.
    EXPECT_TRUE(other.error == 0 || other.error == ENOENT || other.error == EINVAL) << other.error;
  }
  EXPECT_EQ(found_again, 1);

  // A successor makes its own beside it, and destroys both.
  const Region own = Register(*second, kOffset + kBytes);
  EXPECT_NE(own.handle, region.handle);
  EXPECT_EQ(peer.Write(own.address, own.remote_key, "to a successor"), IBV_WC_SUCCESS);
  EXPECT_EQ(HostReads(kOffset + kBytes), "to a successor");
  EXPECT_EQ(Destroy(*second, region.handle), 0);
  EXPECT_EQ(Destroy(*second, region.handle), ENOENT);
  EXPECT_EQ(Find(*second, region.handle).error, ENOENT);
  Talk(peer, 0);

  // Handles are given again at once: a stale one destroys what is another's.
  const Region next = Register(*second);
  EXPECT_EQ(next.handle, region.handle);
  EXPECT_NE(next.remote_key, region.remote_key);
  EXPECT_EQ(Notify(*second, id), CmAnswer::kEstablished);

  // The key of the dead region opens nothing.
  EXPECT_EQ(peer.Write(region.address, region.remote_key, "too late"), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(HostReads(kOffset), "to a dead keeper");
}

// ---- Keepers that are killed at any moment.

// A client of librdmacm that asks to be connected again and again. Each request has to be rejected.
class Asker {
 public:
  explicit Asker(uint16_t port) : port_(port) { Begin(); }
  int fd() const { return side_->fd(); }
  // An event may be there.
  void Turn(bool go_on) {
    SideEvent event;
    while (side_->Next(&event)) {
      switch (event.number) {
        case CmEventNumber::kAddressResolved:
          EXPECT_EQ(side_->ResolveRoute(id_, 5000), 0);
          break;
        case CmEventNumber::kRouteResolved:
          asked_ = Clock::now();
          waiting_ = true;
          EXPECT_EQ(side_->Connect(id_, Parameters()), 0);
          break;
        case CmEventNumber::kRejected:
          End(event.status);
          if (go_on) Begin();
          break;
        default:
          ADD_FAILURE() << "event " << static_cast<uint32_t>(event.number) << " status "
                        << event.status;
          End(-1);
          if (go_on) Begin();
      }
    }
  }
  bool busy() const { return id_ >= 0; }
  int answered() const { return answered_; }
  Clock::duration longest() const { return longest_; }

 private:
  CmParameters Parameters() {
    CmParameters parameters;
    // A queue pair's number that the kernel does not think to be in use already.
    static uint32_t number = 5000;
    parameters.qp_num = ++number;
    parameters.responder_resources = parameters.initiator_depth = 1;
    parameters.retry_count = 6;
    return parameters;
  }
  void Begin() {
    ASSERT_EQ(side_->Create(&id_), 0);
    ASSERT_EQ(side_->ResolveAddress(id_, {Host(), port_}, 5000), 0);
  }
  void End(int status) {
    EXPECT_EQ(status, 28);  // 8: nobody listened
    if (status == 28) ++answered_;
    longest_ = std::max(longest_, Clock::now() - asked_);
    waiting_ = false;
    EXPECT_EQ(side_->Destroy(id_), 0);
    id_ = -1;
  }

  const uint16_t port_;
  std::unique_ptr<CmSide> side_ = ByLibrary();
  int id_ = -1;
  bool waiting_ = false;
  Clock::time_point asked_;
  Clock::duration longest_ = {};
  int answered_ = 0;
};

// Requests that the connection managers of all devices here have counted; the peers' are among
// them. `group`: a folder of /sys/class/infiniband/DEVICE/ports/PORT.
int64_t RequestsCounted(const std::string& group) {
  int64_t sum = 0;
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband")) {
    std::ifstream file(device.path() / "ports/1" / group / "req");
    int64_t count = 0;
    EXPECT_TRUE(file >> count) << device.path() << ": no " << group;
    sum += count;
  }
  return sum;
}

class Kills : public Succession {
 protected:
  static constexpr int kAskers = 6;

  // Lets askers go on until `deadline`, or until the keeper speaks. Returns whether it did.
  bool Run(std::vector<std::unique_ptr<Asker>>& askers, Keeper* keeper, Clock::time_point deadline,
           bool go_on = true) {
    std::vector<pollfd> files;
    for (const auto& asker : askers) files.push_back({asker->fd(), POLLIN, 0});
    if (keeper != nullptr) files.push_back({keeper->socket(), POLLIN, 0});
    while (true) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return false;
      poll(files.data(), files.size(), static_cast<int>(left));
      for (const auto& asker : askers) asker->Turn(go_on);
      if (keeper != nullptr && files.back().revents != 0) return true;
      if (!go_on && std::none_of(askers.begin(), askers.end(),
                                 [](const auto& asker) { return asker->busy(); })) {
        return false;
      }
    }
  }
  void Serve(Keeper& keeper) {
    std::vector<int> files;
    for (const FileDescriptor& file : old_) files.push_back(file.get());
    CmMessage order = Order(CmOrder::kServe, listener_);
    order.number = kHighestId;
    ASSERT_TRUE(keeper.Tell(order, files));
  }

  int Answered() const { return static_cast<int>(memory_->answered + memory_->left_over); }

  std::vector<FileDescriptor> old_;  // of dead keepers, with ids
};

TEST_F(Kills, shouldAnswerEveryRequestWhenKeepersDieAtAnyMoment) {
  constexpr int kKills = 60;
  const uint64_t seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  auto first = StartKeeper();
  ASSERT_NO_FATAL_FAILURE(Listen(*first));
  CmPeer established;
  Connect(*first, established, 0);
  ASSERT_TRUE(first->Kill());
  old_.push_back(first->TakeFile());
  const int64_t repeated_before = RequestsCounted("cm_rx_duplicates");
  const int64_t sent_again_before = RequestsCounted("cm_tx_retries");

  std::vector<std::unique_ptr<Asker>> askers;
  for (int i = 0; i < kAskers; ++i) askers.push_back(std::make_unique<Asker>(port_));
  int in_the_middle = 0, without_an_answer = 0;
  for (int i = 0; i < kKills; ++i) {
    auto keeper = StartKeeper();
    ASSERT_NO_FATAL_FAILURE(Serve(*keeper));
    const int answered_before = Answered();
    // Half of them die while they take over.
    const auto life = std::chrono::microseconds(random() % (i % 2 == 0 ? 30'000 : 300'000));
    const auto end = Clock::now() + life;
    bool taken = Run(askers, keeper.get(), end);
    // On a slow machine more do. A request that finds no keeper for 6 s is rightly repeated by its
    // peer, so after two that answered nothing the next one lives to answer everybody.
    if (without_an_answer == 2) {
      taken |= Run(askers, keeper.get(), Clock::now() + harness::Patient(std::chrono::seconds(3)));
    }
    CmMessage done;
    if (taken) {
      ASSERT_TRUE(keeper->Hear(&done, 0));
      ASSERT_EQ(done.error, 0) << done.text;
      Run(askers, nullptr, end);
      const auto patience = Clock::now() + harness::Patient(std::chrono::seconds(3));
      while (without_an_answer == 2 && Answered() < answered_before + kAskers &&
             Clock::now() < patience) {
        Run(askers, nullptr, Clock::now() + std::chrono::milliseconds(10));
      }
    }
    ASSERT_TRUE(keeper->Kill());
    without_an_answer = Answered() == answered_before ? without_an_answer + 1 : 0;
    // It may have been faster than this process has looked.
    if (!taken && keeper->Hear(&done, 0)) taken = done.error == 0;
    if (taken) {
      old_.clear();
    } else {
      ++in_the_middle;
    }
    old_.push_back(keeper->TakeFile());
    Talk(established, 0);
  }
  auto last = StartKeeper();
  ASSERT_NO_FATAL_FAILURE(Serve(*last));
  ASSERT_TRUE(Run(askers, last.get(), Clock::now() + harness::Patient(std::chrono::seconds(3))));
  const int64_t repeated_before_last = RequestsCounted("cm_rx_duplicates");
  Run(askers, nullptr, Clock::now() + harness::Patient(std::chrono::seconds(6)), /*go_on=*/false);

  int answered = 0;
  Clock::duration longest = {};
  for (const auto& asker : askers) {
    EXPECT_FALSE(asker->busy()) << "a request has no answer";
    answered += asker->answered();
    longest = std::max(longest, asker->longest());
  }
  const int64_t repeated = RequestsCounted("cm_rx_duplicates") - repeated_before;
  std::printf(
      "%d keepers killed, %d of them while taking over; %d requests rejected, %d of them "
      "left over by a predecessor; the slowest after %d ms; %d were sent again, %d of these "
      "had arrived before\n",
      kKills, in_the_middle, answered, static_cast<int>(memory_->left_over.load()),
      static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(longest).count()),
      static_cast<int>(RequestsCounted("cm_tx_retries") - sent_again_before),
      static_cast<int>(repeated));
  EXPECT_GT(in_the_middle, 0);
  EXPECT_LT(in_the_middle, kKills);
  EXPECT_GE(answered, kKills);
  // The kernel of a peer repeats a request that has no answer after 6 s. One that a keeper has lost
  // is answered no earlier, however long the last keeper lives.
  EXPECT_EQ(RequestsCounted("cm_rx_duplicates") - repeated_before_last, 0);
  Talk(established, 0);
}

}  // namespace
}  // namespace baton::verbs::rdma
