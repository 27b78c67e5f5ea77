// CmFile against librdmacm, on the same kernel: each step of a connection's life is made by both,
// and must have the same results. Needs an RDMA device, which the virtual machine has
// (//tests/vm:cm).
#include "lib/verbs/rdma/cm_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/lib/verbs/rdma/cm_side.h"

namespace baton::verbs::rdma {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

static_assert(uint32_t{RDMA_CM_EVENT_ADDR_RESOLVED} == uint32_t(CmEventNumber::kAddressResolved));
static_assert(uint32_t{RDMA_CM_EVENT_ADDR_ERROR} == uint32_t(CmEventNumber::kAddressError));
static_assert(uint32_t{RDMA_CM_EVENT_ROUTE_RESOLVED} == uint32_t(CmEventNumber::kRouteResolved));
static_assert(uint32_t{RDMA_CM_EVENT_ROUTE_ERROR} == uint32_t(CmEventNumber::kRouteError));
static_assert(uint32_t{RDMA_CM_EVENT_CONNECT_RESPONSE} ==
              uint32_t(CmEventNumber::kConnectResponse));
static_assert(uint32_t{RDMA_CM_EVENT_ESTABLISHED} == uint32_t(CmEventNumber::kEstablished));
static_assert(uint32_t{RDMA_CM_EVENT_ADDR_CHANGE} == uint32_t(CmEventNumber::kAddressChange));
static_assert(uint32_t{RDMA_CM_EVENT_TIMEWAIT_EXIT} == uint32_t(CmEventNumber::kTimeWaitExit));

constexpr int kTimeoutMs = 2000;
constexpr uint32_t kServerQueuePair = 0x1234;
constexpr uint32_t kClientQueuePair = 0x5678;

std::string Host() { return std::getenv("BATON_TEST_HOST"); }
SocketAddress At(uint16_t port) { return ToSocketAddress({Host(), port}).value(); }

CmParameters Parameters(uint32_t queue_pair, const std::string& private_data) {
  CmParameters parameters;
  parameters.qp_num = queue_pair;
  std::memcpy(parameters.private_data, private_data.data(), private_data.size());
  parameters.private_data_length = static_cast<uint8_t>(private_data.size());
  parameters.responder_resources = 3;
  parameters.initiator_depth = 2;
  parameters.flow_control = 1;
  parameters.retry_count = 5;
  parameters.rnr_retry_count = 6;
  return parameters;
}

std::string Text(const CmParameters& parameters) {
  const absl::string_view private_data(reinterpret_cast<const char*>(parameters.private_data),
                                       parameters.private_data_length);
  return absl::StrCat("qp ", parameters.qp_num, " srq ", parameters.srq, " resources ",
                      parameters.responder_resources, " depth ", parameters.initiator_depth,
                      " flow ", parameters.flow_control, " retry ", parameters.retry_count, " rnr ",
                      parameters.rnr_retry_count, " private ", private_data.size(), " bytes ",
                      absl::CEscape(private_data));
}

std::string Text(const ibv_ah_attr& address) {
  return absl::StrCat(
      "gid ",
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(address.grh.dgid.raw),
                                               sizeof(address.grh.dgid.raw))),
      " sgid ", address.grh.sgid_index, " hops ", address.grh.hop_limit, " class ",
      address.grh.traffic_class, " dlid ", address.dlid, " sl ", address.sl, " bits ",
      address.src_path_bits, " rate ", address.static_rate, " global ", address.is_global, " port ",
      address.port_num);
}

// All fields but those that differ from one connection to the next: the numbers that packets begin
// with, and the flow label, which the kernel makes of the ports.
std::string Text(const CmQueuePairAttributes& from) {
  const ibv_qp_attr& a = from.attributes;
  return absl::StrCat(
      "mask ", absl::Hex(from.mask), " state ", a.qp_state, " current ", a.cur_qp_state, " mtu ",
      a.path_mtu, " migration ", a.path_mig_state, " qkey ", a.qkey, " peer ", a.dest_qp_num,
      " access ", a.qp_access_flags, " to {", Text(a.ah_attr), "} or {", Text(a.alt_ah_attr),
      "} pkey ", a.pkey_index, " or ", a.alt_pkey_index, " sqd ", a.en_sqd_async_notify, " drains ",
      a.sq_draining, " atomics ", a.max_rd_atomic, " and ", a.max_dest_rd_atomic, " rnr timer ",
      a.min_rnr_timer, " port ", a.port_num, " or ", a.alt_port_num, " timeout ", a.timeout, " or ",
      a.alt_timeout, " retry ", a.retry_cnt, " rnr ", a.rnr_retry, " caps ", a.cap.max_send_wr, " ",
      a.cap.max_recv_wr, " ", a.cap.max_send_sge, " ", a.cap.max_recv_sge, " ",
      a.cap.max_inline_data);
}

// Lists the calls and their results. Nothing in it differs from one run to the next.
class Transcript {
 public:
  void Call(const std::string& what, int error) {
    lines_.push_back(absl::StrCat(what, ": ", error));
  }
  SideEvent Event(const std::string& who, CmSide& side) {
    SideEvent event;
    if (!Await(side, &event)) {
      ADD_FAILURE() << who << " has no event after " << absl::StrJoin(lines_, "\n");
      return event;
    }
    lines_.push_back(absl::StrCat(who, " id ", event.id, " of ", event.listener, " event ",
                                  static_cast<uint32_t>(event.number), " status ", event.status,
                                  " ", Text(event.parameters)));
    return event;
  }
  CmQueuePairAttributes Attributes(const std::string& who, CmSide& side, int id,
                                   ibv_qp_state state) {
    CmQueuePairAttributes attributes;
    const int error = side.Attributes(id, state, &attributes);
    Call(absl::StrCat(who, " attributes ", state), error);
    if (error == 0) lines_.push_back(Text(attributes));
    return attributes;
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

struct Pair {
  CmSide& server;
  CmSide& client;
  Transcript transcript = {};
  int listener = -1, request = -1, connecting = -1;
  bool stuck = false;  // to destroy its ids takes a minute

  void Listen() {
    transcript.Call("create", server.Create(&listener));
    transcript.Call("bind", server.Bind(listener, {Host(), 0}));
    transcript.Call("listen", server.Listen(listener, 8));
  }
  void Resolve(uint16_t port) {
    transcript.Call("create", client.Create(&connecting));
    transcript.Call("resolve", client.ResolveAddress(connecting, {Host(), port}, kTimeoutMs));
    transcript.Event("client", client);
    transcript.Call("route", client.ResolveRoute(connecting, kTimeoutMs));
    transcript.Event("client", client);
  }
  void Connect() {
    Resolve(server.Port(listener));
    transcript.Call("connect",
                    client.Connect(connecting, Parameters(kClientQueuePair, "a request")));
    request = transcript.Event("server", server).id;
  }
  void Accept() {
    transcript.Call("accept",
                    server.Accept(request, Parameters(kServerQueuePair, "an answer, longer")));
    transcript.Event("client", client);
  }
  void Establish() {
    transcript.Call("establish", client.Establish(connecting));
    transcript.Event("server", server);
  }
};

// Another process holds all that is open here, until the machine is turned off.
void HoldForEver() {
  if (fork() != 0) return;
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(file);
  while (true) pause();
}

// Runs a scenario with every combination of the two as server and client.
std::vector<std::string> ExpectSame(const std::function<void(Pair&)>& scenario) {
  std::vector<std::string> expected;
  for (const bool server_is_ours : {false, true}) {
    for (const bool client_is_ours : {false, true}) {
      auto server = server_is_ours ? ByClient() : ByLibrary();
      auto client = client_is_ours ? ByClient() : ByLibrary();
      Pair pair{*server, *client};
      scenario(pair);
      if (expected.empty()) expected = pair.transcript.lines();
      EXPECT_EQ(pair.transcript.lines(), expected)
          << "server " << (server_is_ours ? "CmFile" : "librdmacm") << ", client "
          << (client_is_ours ? "CmFile" : "librdmacm");
      if (!pair.stuck) continue;
      HoldForEver();
      (void)server.release();
      (void)client.release();
    }
  }
  return expected;
}

TEST(CmFileAgainstLibrary, shouldConnectAndDisconnectAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    pair.Listen();
    pair.Connect();
    Transcript& transcript = pair.transcript;
    transcript.Call("unanswered", pair.server.NotifyEstablished(pair.request));
    std::vector<CmQueuePairAttributes> server, client;
    for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      server.push_back(transcript.Attributes("server", pair.server, pair.request, state));
    }
    pair.Accept();
    for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      client.push_back(transcript.Attributes("client", pair.client, pair.connecting, state));
    }
    EXPECT_EQ(server[1].attributes.rq_psn, client[2].attributes.sq_psn);
    EXPECT_EQ(client[1].attributes.rq_psn, server[2].attributes.sq_psn);
    EXPECT_EQ(server[1].attributes.dest_qp_num, kClientQueuePair);
    EXPECT_EQ(client[1].attributes.dest_qp_num, kServerQueuePair);
    pair.Establish();
    transcript.Call("established", pair.server.NotifyEstablished(pair.request));
    transcript.Call("disconnect", pair.server.Disconnect(pair.request));
    transcript.Event("client", pair.client);
    transcript.Attributes("client", pair.client, pair.connecting, IBV_QPS_RTS);
    transcript.Call("disconnect", pair.client.Disconnect(pair.connecting));
    transcript.Event("server", pair.server);
    transcript.Call("over", pair.server.NotifyEstablished(pair.request));
    transcript.Call("destroy", pair.server.Destroy(pair.request));
    transcript.Call("destroy", pair.client.Destroy(pair.connecting));
    transcript.Call("destroy", pair.server.Destroy(pair.listener));
  });
  EXPECT_THAT(lines, Contains(HasSubstr("private 56 bytes a request\\000")));
  EXPECT_THAT(lines, Contains(HasSubstr("private 196 bytes an answer, longer\\000")));
  EXPECT_THAT(lines, Contains("established: " + std::to_string(EISCONN)));
  EXPECT_THAT(lines, Contains("unanswered: " + std::to_string(EINVAL)));
  EXPECT_THAT(lines, Contains("over: " + std::to_string(EINVAL)));
}

TEST(CmFileAgainstLibrary, shouldRejectAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    pair.Listen();
    pair.Connect();
    pair.transcript.Call("reject", pair.server.Reject(pair.request, "no room"));
    pair.transcript.Event("client", pair.client);
    pair.transcript.Call("destroy", pair.server.Destroy(pair.request));
  });
  EXPECT_THAT(lines, Contains(HasSubstr("event 8 status 28")));
  EXPECT_THAT(lines, Contains(HasSubstr("private 148 bytes no room\\000")));
}

TEST(CmFileAgainstLibrary, shouldRejectByDestroyingAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    pair.Listen();
    pair.Connect();
    pair.transcript.Call("destroy", pair.server.Destroy(pair.request));
    pair.transcript.Event("client", pair.client);
  });
  EXPECT_THAT(lines, Contains(HasSubstr("client id 0 of -1 event 8")));
}

TEST(CmFileAgainstLibrary, shouldFindNobodyListeningAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    pair.transcript.Call("create", pair.server.Create(&pair.listener));
    pair.transcript.Call("bind", pair.server.Bind(pair.listener, {Host(), 0}));
    pair.Resolve(pair.server.Port(pair.listener));
    pair.transcript.Call("connect",
                         pair.client.Connect(pair.connecting, Parameters(kClientQueuePair, "")));
    pair.transcript.Event("client", pair.client);
  });
  EXPECT_THAT(lines, Contains(HasSubstr("event 8 status 8 ")));  // no such service
}

// The connecting side withholds its last word, which its queue pair would say by receiving.
TEST(CmFileAgainstLibrary, shouldBeEstablishedByNotifyAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    pair.Listen();
    pair.Connect();
    pair.Accept();
    pair.transcript.Call("accepted", pair.server.NotifyEstablished(pair.request));
    pair.transcript.Event("server", pair.server);
    pair.transcript.Call("established", pair.server.NotifyEstablished(pair.request));
    pair.transcript.Call("establish", pair.client.Establish(pair.connecting));
    pair.transcript.Call("disconnect", pair.client.Disconnect(pair.connecting));
    pair.transcript.Event("server", pair.server);
  });
  EXPECT_THAT(lines, Contains("accepted: 0"));
  EXPECT_THAT(lines, Contains("established: " + std::to_string(EISCONN)));
}

// The kernel goes on to repeat the first answer, for 69 s, and the id is not destroyed before.
TEST(CmFileAgainstLibrary, shouldEndAConnectionThatIsAcceptedTwiceAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    pair.Listen();
    pair.Connect();
    pair.Accept();
    pair.transcript.Call("again",
                         pair.server.Accept(pair.request, Parameters(kServerQueuePair, "")));
    pair.transcript.Event("client", pair.client);
    pair.stuck = true;
  });
  EXPECT_THAT(lines, Contains("again: " + std::to_string(EINVAL)));
  EXPECT_THAT(lines, Contains(HasSubstr("client id 0 of -1 event 8")));
}

TEST(CmFileAgainstLibrary, shouldRejectAfterAnAcceptAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    pair.Listen();
    pair.Connect();
    pair.Accept();
    pair.transcript.Call("reject", pair.server.Reject(pair.request, ""));
    pair.transcript.Event("client", pair.client);
    pair.stuck = true;
  });
  EXPECT_THAT(lines, Contains("reject: 0"));
  EXPECT_THAT(lines, Contains(HasSubstr("client id 0 of -1 event 8")));
}

TEST(CmFileAgainstLibrary, shouldDestroyWhatWasAcceptedAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    pair.Listen();
    pair.Connect();
    pair.Accept();
    pair.transcript.Call("destroy", pair.server.Destroy(pair.request));
    pair.transcript.Event("client", pair.client);
  });
  EXPECT_THAT(lines, Contains(HasSubstr("client id 0 of -1 event 8")));
}

TEST(CmFileAgainstLibrary, shouldKeepAnEstablishedConnectionThatIsAcceptedAgainAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    pair.Listen();
    pair.Connect();
    pair.Accept();
    pair.Establish();
    pair.transcript.Call("again",
                         pair.server.Accept(pair.request, Parameters(kServerQueuePair, "")));
    pair.transcript.Call("established", pair.server.NotifyEstablished(pair.request));
    pair.transcript.Call("disconnect", pair.client.Disconnect(pair.connecting));
    pair.transcript.Event("server", pair.server);
  });
  EXPECT_THAT(lines, Contains("again: " + std::to_string(EINVAL)));
  EXPECT_THAT(lines, Contains("established: " + std::to_string(EISCONN)));
  EXPECT_THAT(lines, Contains(HasSubstr("server id 1 of -1 event 10")));
}

TEST(CmFileAgainstLibrary, shouldSetOptionsAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    Transcript& transcript = pair.transcript;
    int first = -1, second = -1, third = -1;
    transcript.Call("create", pair.server.Create(&first));
    transcript.Call("create", pair.server.Create(&second));
    transcript.Call("create", pair.server.Create(&third));
    transcript.Call("reuse", pair.server.SetReuseAddress(first, true));
    transcript.Call("reuse", pair.server.SetReuseAddress(second, true));
    transcript.Call("bind", pair.server.Bind(first, {Host(), 0}));
    const uint16_t port = pair.server.Port(first);
    transcript.Call("bind the same", pair.server.Bind(second, {Host(), port}));
    transcript.Call("bind without", pair.server.Bind(third, {Host(), port}));
    transcript.Call("family", pair.server.SetAddressFamilyOnly(third, true));
    transcript.Call("family too late", pair.server.SetAddressFamilyOnly(second, true));
    transcript.Call("service", pair.client.Create(&pair.connecting));
    transcript.Call("service", pair.client.SetTypeOfService(pair.connecting, 0x20));
    transcript.Call("timeout", pair.client.SetAckTimeout(pair.connecting, 21));
    pair.Listen();
    transcript.Call("resolve",
                    pair.client.ResolveAddress(
                        pair.connecting, {Host(), pair.server.Port(pair.listener)}, kTimeoutMs));
    transcript.Event("client", pair.client);
    transcript.Call("route", pair.client.ResolveRoute(pair.connecting, kTimeoutMs));
    transcript.Event("client", pair.client);
    transcript.Call("connect",
                    pair.client.Connect(pair.connecting, Parameters(kClientQueuePair, "")));
    pair.request = transcript.Event("server", pair.server).id;
    pair.Accept();
    transcript.Attributes("client", pair.client, pair.connecting, IBV_QPS_RTR);
    const auto rts = transcript.Attributes("client", pair.client, pair.connecting, IBV_QPS_RTS);
    EXPECT_EQ(rts.attributes.timeout, 21);
  });
  EXPECT_THAT(lines, Contains("bind the same: 0"));
  EXPECT_THAT(lines, Contains("bind without: " + std::to_string(EADDRINUSE)));
  EXPECT_THAT(lines, Contains(HasSubstr(" class 32 ")));
}

TEST(CmFileAgainstLibrary, shouldRefuseWrongCallsAlike) {
  const auto lines = ExpectSame([](Pair& pair) {
    CmSide& side = pair.server;
    Transcript& transcript = pair.transcript;
    int id = -1, bound = -1;
    CmQueuePairAttributes attributes;
    transcript.Call("create", side.Create(&id));
    transcript.Call("establish nothing", side.Establish(id));
    transcript.Call("reject nothing", side.Reject(id, ""));
    transcript.Call("disconnect nothing", side.Disconnect(id));
    transcript.Call("attributes of nothing", side.Attributes(id, IBV_QPS_INIT, &attributes));
    transcript.Call("notify nothing", side.NotifyEstablished(id));
    transcript.Call("bind to another's address", side.Bind(id, {"192.0.2.1", 0}));
    transcript.Call("bind", side.Bind(id, {Host(), 0}));
    transcript.Call("bind twice", side.Bind(id, {Host(), 0}));
    // librdmacm crashes on these before there is a device.
    transcript.Call("route of nothing", side.ResolveRoute(id, kTimeoutMs));
    transcript.Call("connect to nothing", side.Connect(id, Parameters(1, "")));
    transcript.Call("accept nothing", side.Accept(id, Parameters(1, "")));
    transcript.Call("create", side.Create(&bound));
    transcript.Call("bind to a port in use", side.Bind(bound, {Host(), side.Port(id)}));
    transcript.Call("attributes too early", side.Attributes(id, IBV_QPS_RTR, &attributes));
    transcript.Call("disconnect a listener", side.Listen(id, 1) + side.Disconnect(id));
    transcript.Call("listen twice", side.Listen(id, 1));
    transcript.Call("resolve a listener", side.ResolveAddress(id, {Host(), 1}, kTimeoutMs));
    pair.Listen();
    pair.Resolve(side.Port(pair.listener));
    transcript.Call("too much private data",
                    pair.client.Connect(pair.connecting, Parameters(1, std::string(57, 'x'))));
    transcript.Call("connect", pair.client.Connect(pair.connecting, Parameters(1, "")));
    transcript.Event("server", side);
    transcript.Call("connect twice", pair.client.Connect(pair.connecting, Parameters(1, "")));
  });
  EXPECT_THAT(lines, Contains("too much private data: " + std::to_string(EINVAL)));
  for (const std::string& line : lines) {
    if (line.find("nothing") != std::string::npos || line.find("twice") != std::string::npos) {
      EXPECT_THAT(line, ::testing::Not(::testing::EndsWith(": 0"))) << line;
    }
  }
}

// librdmacm's own id, which CmFile reads through librdmacm's own file.
class SameId : public ::testing::Test {
 protected:
  SameId() {
    EXPECT_NE(channel_, nullptr);
    EXPECT_EQ(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP), 0);
    while (!file_.QueryAddresses(number_).ok() && number_ < 10000) ++number_;
  }
  ~SameId() override {
    rdma_destroy_id(id_);
    rdma_destroy_event_channel(channel_);
  }
  void Step(int result, rdma_cm_event_type expected) {
    ASSERT_EQ(result, 0) << errno;
    rdma_cm_event* event = nullptr;
    ASSERT_EQ(rdma_get_cm_event(channel_, &event), 0);
    EXPECT_EQ(event->event, expected);
    rdma_ack_cm_event(event);
  }
  void ExpectSameAddresses() {
    const CmAddresses ours = file_.QueryAddresses(number_).value();
    EXPECT_EQ(std::memcmp(&ours.local.storage, rdma_get_local_addr(id_), ours.local.size), 0);
    EXPECT_EQ(std::memcmp(&ours.peer.storage, rdma_get_peer_addr(id_), ours.peer.size), 0);
    EXPECT_EQ(ours.local.size, sizeof(sockaddr_in));
    EXPECT_EQ(ours.port, id_->port_num);
    EXPECT_EQ(ours.node_guid, ibv_get_device_guid(id_->verbs->device));
    EXPECT_EQ(ours.device_index, static_cast<uint32_t>(ibv_get_device_index(id_->verbs->device)));
    EXPECT_EQ(ours.p_key, id_->route.addr.addr.ibaddr.pkey);
    const CmGids gids = file_.QueryGids(number_).value();
    EXPECT_EQ(std::memcmp(&gids.local, &id_->route.addr.addr.ibaddr.sgid, sizeof(ibv_gid)), 0);
    EXPECT_EQ(std::memcmp(&gids.peer, &id_->route.addr.addr.ibaddr.dgid, sizeof(ibv_gid)), 0);
    EXPECT_NE(
        absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(gids.peer.raw), 16)),
        std::string(32, '0'));
  }
  void ExpectSameAttributes(ibv_qp_state state) {
    CmQueuePairAttributes theirs;
    theirs.attributes.qp_state = state;
    errno = 0;
    const int error = rdma_init_qp_attr(id_, &theirs.attributes, &theirs.mask) == 0 ? 0 : errno;
    const auto ours = file_.QueuePairAttributes(number_, state);
    ASSERT_EQ(CmErrno(ours.status()), error);
    if (error != 0) return;
    EXPECT_EQ(Text(*ours), Text(theirs));
    EXPECT_EQ(ours->attributes.rq_psn, theirs.attributes.rq_psn);
    EXPECT_EQ(ours->attributes.sq_psn, theirs.attributes.sq_psn);
    EXPECT_EQ(ours->attributes.ah_attr.grh.flow_label, theirs.attributes.ah_attr.grh.flow_label);
    ++compared_;
  }

  rdma_event_channel* const channel_ = rdma_create_event_channel();
  CmFile file_{FileDescriptor(dup(channel_->fd))};
  rdma_cm_id* id_ = nullptr;
  uint32_t number_ = 0;
  int compared_ = 0;
};

TEST_F(SameId, shouldBeDescribedAlike) {
  const auto server = ByClient();
  Pair pair{*server, *server};
  pair.Listen();
  SocketAddress peer = At(server->Port(pair.listener));
  Step(rdma_resolve_addr(id_, nullptr, peer.get(), kTimeoutMs), RDMA_CM_EVENT_ADDR_RESOLVED);
  ExpectSameAddresses();
  ibv_path_data paths[2];
  EXPECT_EQ(file_.QueryPaths(number_, paths, 2).value(), 0);
  ExpectSameAttributes(IBV_QPS_INIT);
  ExpectSameAttributes(IBV_QPS_RTR);  // before there is a connection: those for INIT

  Step(rdma_resolve_route(id_, kTimeoutMs), RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_EQ(file_.QueryPaths(number_, paths, 2).value(), 1);
  ASSERT_EQ(id_->route.num_paths, 1);
  const ibv_path_record& ours = paths[0].path;
  const ibv_sa_path_rec& theirs = *id_->route.path_rec;
  EXPECT_EQ(std::memcmp(&ours.dgid, &theirs.dgid, sizeof(ibv_gid)), 0);
  EXPECT_EQ(std::memcmp(&ours.sgid, &theirs.sgid, sizeof(ibv_gid)), 0);
  EXPECT_EQ(ours.dlid, theirs.dlid);
  EXPECT_EQ(ours.slid, theirs.slid);
  EXPECT_EQ(ours.tclass, theirs.traffic_class);
  EXPECT_EQ(ours.pkey, theirs.pkey);
  EXPECT_EQ(ours.mtu & 0x3f, theirs.mtu);
  EXPECT_EQ(ours.rate & 0x3f, theirs.rate);
  EXPECT_EQ(ours.packetlifetime & 0x3f, theirs.packet_life_time);
  EXPECT_EQ(be32toh(ours.flowlabel_hoplimit) & 0xff, theirs.hop_limit);

  rdma_conn_param parameters = {};
  parameters.qp_num = kClientQueuePair;
  parameters.responder_resources = parameters.initiator_depth = 1;
  ASSERT_EQ(rdma_connect(id_, &parameters), 0);
  SideEvent request;
  ASSERT_TRUE(Await(*server, &request));
  ASSERT_EQ(server->Accept(request.id, Parameters(kServerQueuePair, "")), 0);
  Step(0, RDMA_CM_EVENT_CONNECT_RESPONSE);
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    ExpectSameAttributes(state);
  }
  EXPECT_EQ(compared_, 5);
  ASSERT_EQ(rdma_establish(id_), 0);
  ExpectSameAttributes(IBV_QPS_RTS);
  EXPECT_EQ(compared_, 6);
}

// ---- What librdmacm has no equivalent of.

TEST(CmFileTest, shouldSayWhichCommandFailedWhyAndWhatToDo) {
  CmFile file = CmFile::Open().value();
  const absl::Status status = file.Listen(~0u, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CmErrno(status), ENOENT);
  EXPECT_EQ(status.message(),
            "LISTEN of rdma_cm's id 4294967295: No such file or directory (errno 2); no file has "
            "this id; it was destroyed, or its file was closed");
  EXPECT_EQ(CmErrno(absl::OkStatus()), 0);
  EXPECT_EQ(CmErrno(absl::InternalError("of another")), 0);
}

TEST(CmFileTest, shouldRefuseWhatTheKernelWouldTakeWrongly) {
  CmFile file = CmFile::Open().value();
  EXPECT_EQ(file.Create(0).status().code(), absl::StatusCode::kInvalidArgument);
  const uint32_t id = file.Create(1).value();
  EXPECT_EQ(file.Accept(id, 0, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.Reject(id, CmRejection::kConsumerDefined, std::string(256, 'x')).code(),
            absl::StatusCode::kInvalidArgument);
  SocketAddress address = At(0);
  address.size = sizeof(sockaddr_storage) + 1;
  EXPECT_EQ(file.Bind(id, address).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.ResolveAddress(id, &address, At(1), 1).code(), absl::StatusCode::kInvalidArgument);
  // The kernel asks for the family's own size.
  address.size = sizeof(sockaddr_storage);
  EXPECT_EQ(CmErrno(file.Bind(id, address)), EINVAL);
}

TEST(CmFileTest, shouldRefuseToConnectAndAcceptBeforeThereIsADevice) {
  CmFile file = CmFile::Open().value();
  const uint32_t id = file.Create(1).value();
  EXPECT_EQ(CmErrno(file.ResolveRoute(id, 1)), EINVAL);
  EXPECT_EQ(CmErrno(file.Connect(id, Parameters(1, ""))), EINVAL);
  EXPECT_EQ(CmErrno(file.Accept(id, 1, Parameters(1, ""))), EINVAL);
}

TEST(CmFileTest, shouldHaveNoEventAndNoErrorWhenThereIsNone) {
  CmFile file = CmFile::Open().value();
  CmEventSlot slot;
  slot.uid = 77;
  const auto some = file.NextEvent(&slot);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_FALSE(*some);
  EXPECT_EQ(slot.uid, 77u);
}

TEST(CmFileTest, shouldReportBothReasonsOfARejection) {
  for (const CmRejection reason :
       {CmRejection::kConsumerDefined, CmRejection::kVendorOptionNotSupported}) {
    CmFile file = CmFile::Open().value();
    const auto client = ByLibrary();
    Pair pair{*client, *client};
    const uint32_t listener = file.Create(5).value();
    ASSERT_TRUE(file.Bind(listener, At(0)).ok());
    ASSERT_TRUE(file.Listen(listener, 1).ok());
    pair.Resolve(FromSocketAddress(*file.QueryAddresses(listener).value().local.get()).port);
    ASSERT_EQ(client->Connect(pair.connecting, Parameters(1, "")), 0);
    pollfd readable = {file.fd(), POLLIN, 0};
    ASSERT_EQ(poll(&readable, 1, 30000), 1);
    CmEventSlot slot;
    ASSERT_TRUE(file.NextEvent(&slot).value());
    EXPECT_EQ(slot.uid, 5u);
    ASSERT_TRUE(file.Reject(slot.id, reason, "").ok());
    EXPECT_EQ(pair.transcript.Event("client", *client).status, static_cast<int>(reason));
  }
}

// The machine has one processor, so requests arrive in the order in which they were made.
TEST(CmFileTest, shouldLoseARequestBeyondTheBacklogUntilThePeerRepeatsIt) {
  CmFile file = CmFile::Open().value(), other = CmFile::Open().value();
  const auto client = ByLibrary();
  int asked = 0;
  const auto listen = [](CmFile& at) {
    const uint32_t listener = at.Create(1).value();
    EXPECT_TRUE(at.Bind(listener, At(0)).ok());
    EXPECT_TRUE(at.Listen(listener, 1).ok());
    return FromSocketAddress(*at.QueryAddresses(listener).value().local.get()).port;
  };
  const auto ask = [&](uint16_t port) {
    Pair pair{*client, *client};
    pair.Resolve(port);
    EXPECT_EQ(client->Connect(pair.connecting, Parameters(100 + ++asked, "")), 0);
  };
  const auto next = [](CmFile& at) {
    pollfd readable = {at.fd(), POLLIN, 0};
    CmEventSlot slot;
    EXPECT_EQ(poll(&readable, 1, 30000), 1);
    EXPECT_TRUE(at.NextEvent(&slot).value());
    return slot.connection.qp_num;
  };
  const uint16_t port = listen(file);
  ask(port);
  ask(port);
  ask(listen(other));
  EXPECT_EQ(next(other), 103u);  // so the others have arrived
  EXPECT_EQ(next(file), 101u);
  const auto read = std::chrono::steady_clock::now();
  EXPECT_EQ(next(file), 102u);
  EXPECT_GT(std::chrono::steady_clock::now() - read, std::chrono::seconds(2));
}

// ---- Files, processes, and ids that move between them.

int ErrorInChild(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}
int ErrorOfCreate(CmFile& file) { return CmErrno(file.Create(1).status()); }

TEST(CmFileProcess, shouldBeOfNoUseAfterAFork) {
  CmFile file = CmFile::Open().value();
  EXPECT_EQ(ErrorOfCreate(file), 0);
  EXPECT_EQ(ErrorInChild([&] { return ErrorOfCreate(file); }), EACCES);
  CmEventSlot slot;
  EXPECT_EQ(ErrorInChild([&] { return CmErrno(file.NextEvent(&slot).status()); }), EACCES);
}

TEST(CmFileProcess, shouldBeOfNoUseAfterAChangeOfCredentials) {
  EXPECT_EQ(ErrorInChild([] {
              CmFile file = CmFile::Open().value();
              if (ErrorOfCreate(file) != 0) return 1;
              // Gives up one capability that nothing here needs.
              __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
              __user_cap_data_struct data[2] = {};
              if (syscall(SYS_capget, &header, data) != 0) return 2;
              data[0].permitted &= ~(1u << CAP_SYS_PACCT);
              data[0].effective &= ~(1u << CAP_SYS_PACCT);
              if (syscall(SYS_capset, &header, data) != 0) return 3;
              return ErrorOfCreate(file);
            }),
            EACCES);
}

class Migration : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = old_.Create(1).value();
    ASSERT_TRUE(old_.Bind(listener_, At(0)).ok());
    ASSERT_TRUE(old_.Listen(listener_, 8).ok());
    port_ = FromSocketAddress(*old_.QueryAddresses(listener_).value().local.get()).port;
  }
  // A request waits in `old_`.
  void Request(const std::string& private_data) {
    int id = -1;
    SideEvent event;
    ASSERT_EQ(client_->Create(&id), 0);
    ASSERT_EQ(client_->ResolveAddress(id, {Host(), port_}, kTimeoutMs), 0);
    ASSERT_TRUE(Await(*client_, &event));
    ASSERT_EQ(client_->ResolveRoute(id, kTimeoutMs), 0);
    ASSERT_TRUE(Await(*client_, &event));
    ASSERT_EQ(client_->Connect(id, Parameters(kClientQueuePair, private_data)), 0);
    pollfd file = {old_.fd(), POLLIN, 0};
    ASSERT_EQ(poll(&file, 1, 30000), 1);
  }
  static std::string PrivateData(const CmEventSlot& slot) {
    return reinterpret_cast<const char*>(slot.connection.private_data);
  }

  CmFile old_ = CmFile::Open().value();
  CmFile new_ = CmFile::Open().value();
  const std::unique_ptr<CmSide> client_ = ByLibrary();
  uint32_t listener_ = 0;
  uint16_t port_ = 0;
};

TEST_F(Migration, shouldMoveAnIdFromOneFileToAnother) {
  EXPECT_EQ(CmErrno(new_.Listen(listener_, 1)), EINVAL);
  ASSERT_TRUE(new_.Migrate(old_.fd(), listener_).ok());
  EXPECT_EQ(CmErrno(old_.Listen(listener_, 1)), EINVAL);
  EXPECT_EQ(FromSocketAddress(*new_.QueryAddresses(listener_).value().local.get()).port, port_);
  EXPECT_EQ(CmErrno(new_.Migrate(old_.fd(), listener_).status()), EINVAL);
  EXPECT_EQ(CmErrno(new_.Migrate(old_.fd(), ~0u).status()), ENOENT);
  EXPECT_EQ(CmErrno(new_.Migrate(-1, listener_).status()), ENOENT);
  EXPECT_EQ(CmErrno(new_.Migrate(STDERR_FILENO, listener_).status()), EINVAL);
}

// A process that sleeps in epoll_wait on the new file sleeps until something else happens.
TEST_F(Migration, shouldNotWakeWhoWaitsForEvents) {
  Request("unread");
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event wanted = {};
  wanted.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, new_.fd(), &wanted), 0);
  ASSERT_TRUE(new_.Migrate(old_.fd(), listener_).ok());
  epoll_event found = {};
  EXPECT_EQ(epoll_wait(epoll.get(), &found, 1, 0), 0);
  pollfd readable = {new_.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&readable, 1, 0), 1);
  CmEventSlot slot;
  ASSERT_TRUE(new_.NextEvent(&slot).value());
  EXPECT_EQ(PrivateData(slot), "unread");
}

TEST_F(Migration, shouldMoveTheEventsOfRequestsWithTheirListener) {
  Request("unread");
  ASSERT_TRUE(new_.Migrate(old_.fd(), listener_).ok());
  CmEventSlot slot;
  EXPECT_FALSE(old_.NextEvent(&slot).value());
  ASSERT_TRUE(new_.NextEvent(&slot).value());
  EXPECT_EQ(slot.uid, 1u);
  // Its own id is still in the old file, and moves by its number.
  EXPECT_EQ(CmErrno(new_.Reject(slot.id, CmRejection::kConsumerDefined, "")), EINVAL);
  ASSERT_TRUE(new_.Migrate(old_.fd(), slot.id).ok());
  EXPECT_TRUE(new_.Reject(slot.id, CmRejection::kConsumerDefined, "").ok());
}

TEST_F(Migration, shouldMoveARequestThatWasReadWithoutItsPrivateData) {
  Request("read");
  FileDescriptor memory(memfd_create("slot", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 4096), 0);
  void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(page, MAP_FAILED);
  ASSERT_TRUE(old_.NextEvent(static_cast<CmEventSlot*>(page)).value());
  munmap(page, 4096);
  // A successor finds it in the memory.
  CmEventSlot slot;
  ASSERT_EQ(pread(memory.get(), &slot, sizeof(slot), 0), ssize_t{sizeof(slot)});
  EXPECT_EQ(PrivateData(slot), "read");
  ASSERT_TRUE(new_.Migrate(old_.fd(), listener_).ok());
  ASSERT_TRUE(new_.Migrate(old_.fd(), slot.id).ok());
  CmEventSlot again;
  EXPECT_FALSE(new_.NextEvent(&again).value());
  EXPECT_EQ(new_.NotifyEstablished(slot.id).value(), CmAnswer::kNone);
  EXPECT_TRUE(new_.Accept(slot.id, 9, Parameters(kServerQueuePair, "")).ok());
  EXPECT_EQ(new_.NotifyEstablished(slot.id).value(), CmAnswer::kAccepted);
  EXPECT_EQ(new_.NotifyEstablished(slot.id).value(), CmAnswer::kEstablished);
}

TEST_F(Migration, shouldTakeTheUnreadRequestsOfAListenerWithIt) {
  Request("unread");
  ASSERT_TRUE(old_.Destroy(listener_).ok());
  SideEvent event;
  ASSERT_TRUE(Await(*client_, &event));
  EXPECT_EQ(event.number, CmEventNumber::kRejected);
  CmEventSlot slot;
  EXPECT_FALSE(old_.NextEvent(&slot).value());
}

}  // namespace
}  // namespace baton::verbs::rdma
