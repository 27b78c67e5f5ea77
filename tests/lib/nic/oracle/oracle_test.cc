// Debian's unmodified libmlx5 and our driver, side by side on the same queues: what one writes the
// other writes, and what one reads the other reads.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <algorithm>
#include <bitset>
#include <random>
#include <string>
#include <vector>

#include "lib/verbs/mlx5/format.h"
#include "tests/lib/nic/oracle/end.h"

namespace baton::nic::oracle {
namespace {

using verbs::Completion;
using verbs::CompletionStatus;
using verbs::Opcode;
using verbs::ScatterGather;
using verbs::SendRequest;

bool TakesReceive(Opcode opcode) {
  return !verbs::mlx5::HasRemoteAddress(opcode) || opcode == Opcode::kWriteWithImmediate;
}

// Requests have their buffers in the first half of the data, remote ones in the second.
class OracleTest : public testing::Test {
 protected:
  static constexpr size_t kRemote = kDataBytes / 2;
  static constexpr size_t kRoom = 4096;

  OracleTest() {
    one.Connect(other);
    other.Connect(one);
  }

  // Sends, and waits until both ends have what completes of it.
  void Exchange(End* from, End* to, SendRequest request, const std::vector<ScatterGather>& sges) {
    request.wr_id = ++posted_;
    request.sges = sges;
    const uint64_t length = LengthOf(sges);
    const bool takes = TakesReceive(request.opcode);
    std::vector<ScatterGather> receive;
    if (takes) {
      receive = SomeBuffers(kRemote + kRoom, 1 + random_() % (kSges - 1));
      receive.push_back(opened.Sge(kRemote + 2 * kRoom, kRoom));
      ASSERT_NO_FATAL_FAILURE(to->Receive({1'000'000 + posted_, receive}));
    }
    const std::string sent = Gather(sges, length);
    ASSERT_NO_FATAL_FAILURE(from->Send(request));
    std::vector<Completion> done = from->Poll(1);
    ASSERT_EQ(done.size(), 1u);
    ASSERT_EQ(done[0].wr_id, posted_);
    ASSERT_EQ(done[0].status, CompletionStatus::kSuccess) << verbs::OpcodeName(request.opcode);
    if (takes) {
      done = to->Poll(1);
      ASSERT_EQ(done.size(), 1u);
      ASSERT_EQ(done[0].wr_id, 1'000'000 + posted_);
      ASSERT_EQ(done[0].byte_len, length);
      if (done[0].has_immediate) ASSERT_EQ(done[0].immediate, request.immediate);
    }
    if (verbs::IsAtomic(request.opcode)) return;
    const auto remote =
        verbs::mlx5::HasRemoteAddress(request.opcode)
            ? std::string(reinterpret_cast<const char*>(request.remote_address), length)
            : Gather(receive, length);
    ASSERT_EQ(request.opcode == Opcode::kRead ? Gather(sges, length) : sent, remote);
  }

  SendRequest Request(Opcode opcode) {
    SendRequest request;
    request.opcode = opcode;
    request.immediate = static_cast<uint32_t>(random_());
    request.invalidate_rkey = static_cast<uint32_t>(random_());
    request.compare_add = random_();
    request.swap = random_();
    if (verbs::mlx5::HasRemoteAddress(opcode)) {
      request.remote_address =
          opened.Sge(kRemote + (verbs::IsAtomic(opcode) ? 8 : 1) * (random_() % 64), 0).address;
      request.rkey = opened.device.region().rkey;
    }
    return request;
  }

  // Each buffer has up to 40 bytes, some have none.
  std::vector<ScatterGather> SomeBuffers(size_t offset, size_t count) {
    std::vector<ScatterGather> sges;
    for (size_t i = 0; i < count; ++i) {
      sges.push_back(opened.Sge(offset + i * 64, random_() % 41));
    }
    return sges;
  }
  std::vector<ScatterGather> InlineBuffers(size_t total) {
    const size_t first = random_() % (total + 1);
    const size_t second = random_() % (total - first + 1);
    return {opened.Sge(0, first), opened.Sge(1000, second),
            opened.Sge(2000, total - first - second)};
  }
  void NewData() {
    for (size_t i = 0; i < kRoom; ++i) opened.device.data()[i] = static_cast<uint8_t>(random_());
  }
  static std::string Gather(const std::vector<ScatterGather>& sges, uint64_t length) {
    std::string bytes;
    for (const ScatterGather& sge : sges) {
      bytes.append(reinterpret_cast<const char*>(sge.address), sge.length);
    }
    return bytes.substr(0, length);
  }

  // Sends so often that the request has begun at each place of the queue.
  void ExchangeAtEachPlace(const SendRequest& request, const std::vector<ScatterGather>& sges) {
    std::bitset<256> begun;
    while (begun.count() < one.slots()) {
      if (begun.test(one.place())) {
        ASSERT_NO_FATAL_FAILURE(Exchange(&one, &other, Request(Opcode::kWrite), {}));
        continue;
      }
      begun.set(one.place());
      ASSERT_NO_FATAL_FAILURE(Exchange(&one, &other, request, sges));
    }
  }

  Opened opened;
  End one{&opened};
  End other{&opened, 128};
  std::mt19937 random_{20261123};
  uint64_t posted_ = 0;
};

TEST_F(OracleTest, shouldWriteEachRequestAsLibmlx5DoesAtEachPlace) {
  for (uint8_t code = 0; code < verbs::kOpcodeCount; ++code) {
    const auto opcode = static_cast<Opcode>(code);
    for (int flags = 0; flags < 4; ++flags) {
      for (size_t count = 0; count <= kSges; ++count) {
        if (verbs::IsAtomic(opcode) && count != 1) continue;
        NewData();
        SendRequest request = Request(opcode);
        request.fence = (flags & 1) != 0;
        request.solicited = (flags & 2) != 0;
        ASSERT_NO_FATAL_FAILURE(ExchangeAtEachPlace(
            request, verbs::IsAtomic(opcode) ? std::vector{opened.Sge(0, 8)}
                                             : SomeBuffers(random_() % 512, count)));
      }
    }
  }
}

TEST_F(OracleTest, shouldWriteInlineDataOfEachLengthAsLibmlx5DoesAtEachPlace) {
  for (uint8_t code = 0; code < verbs::kOpcodeCount; ++code) {
    const auto opcode = static_cast<Opcode>(code);
    if (verbs::IsAnswered(opcode)) continue;
    for (size_t total = 0; total <= kInlineBytes; ++total) {
      NewData();
      SendRequest request = Request(opcode);
      request.inline_data = true;
      ASSERT_NO_FATAL_FAILURE(ExchangeAtEachPlace(request, InlineBuffers(total)));
    }
  }
}

TEST_F(OracleTest, shouldWriteEachReceiveAsLibmlx5DoesAtEachPlace) {
  for (size_t count = 0; count <= kSges; ++count) {
    for (uint32_t place = 0; place < one.receive_slots(); ++place) {
      ASSERT_NO_FATAL_FAILURE(
          other.Receive({place, SomeBuffers(kRemote + random_() % 512, count)}));
      SendRequest request = Request(Opcode::kSend);
      ASSERT_NO_FATAL_FAILURE(one.Send(request));
      ASSERT_EQ(one.Poll(1).size(), 1u);
      ASSERT_EQ(other.Poll(1).size(), 1u);
    }
  }
}

// Both ends fail in one way or another, with requests behind the one that failed.
TEST_F(OracleTest, shouldReadErrorsAsLibmlx5Does) {
  const std::vector<ScatterGather> some = {opened.Sge(0, 100)};
  const std::vector<ScatterGather> unknown = {{some[0].address, 100, some[0].lkey ^ 0x5500}};
  const std::vector<ScatterGather> small = {opened.Sge(kRemote, 10)};
  struct Case {
    Opcode opcode;
    const std::vector<ScatterGather>& sges;
    bool foreign_key;
    const std::vector<ScatterGather>& receive;
    CompletionStatus status;
    CompletionStatus receive_status;
  };
  const Case cases[] = {
      {Opcode::kSend, unknown, false, some, CompletionStatus::kLocalProtectionError,
       CompletionStatus::kFlushError},
      {Opcode::kWrite, some, true, some, CompletionStatus::kRemoteAccessError,
       CompletionStatus::kFlushError},
      {Opcode::kRead, some, true, some, CompletionStatus::kRemoteAccessError,
       CompletionStatus::kFlushError},
      {Opcode::kSend, some, false, small, CompletionStatus::kRemoteInvalidRequest,
       CompletionStatus::kLocalLengthError},
      {Opcode::kSend, some, false, unknown, CompletionStatus::kRemoteOperationError,
       CompletionStatus::kLocalProtectionError},
  };
  for (const Case& c : cases) {
    End from(&opened);
    End to(&opened);
    from.Connect(to);
    to.Connect(from);
    for (uint64_t i = 0; i < 3; ++i) ASSERT_NO_FATAL_FAILURE(to.Receive({50 + i, c.receive}));
    SendRequest request = Request(c.opcode);
    request.sges = c.sges;
    if (c.foreign_key) request.rkey ^= 0x5500;
    for (uint64_t i = 0; i < 3; ++i) {
      request.wr_id = i;
      ASSERT_NO_FATAL_FAILURE(from.Send(request));
    }
    const std::vector<Completion> sent = from.Poll(3);
    ASSERT_EQ(sent.size(), 3u);
    EXPECT_EQ(sent[0].status, c.status);
    EXPECT_EQ(sent[1].status, CompletionStatus::kFlushError);
    EXPECT_EQ(sent[2].status, CompletionStatus::kFlushError);
    ibv_qp_attr error = {};
    error.qp_state = IBV_QPS_ERR;
    ASSERT_EQ(ibv_modify_qp(to.queue_pair(), &error, IBV_QP_STATE), 0);
    const std::vector<Completion> received = to.Poll(3);
    ASSERT_EQ(received.size(), 3u);
    EXPECT_EQ(received[0].status, c.receive_status);
    EXPECT_EQ(received[2].status, CompletionStatus::kFlushError);
  }
}

TEST_F(OracleTest, shouldArmAsLibmlx5Does) {
  ibv_comp_channel* const channel = ibv_create_comp_channel(opened.device.context());
  ASSERT_NE(channel, nullptr);
  {
    End from(&opened, 64, channel);
    End to(&opened);
    from.Connect(to);
    to.Connect(from);
    for (int i = 0; i < 20; ++i) {
      ASSERT_NO_FATAL_FAILURE(from.Arm());
      if (i % 3 == 0) ASSERT_NO_FATAL_FAILURE(from.Arm());
      ASSERT_NO_FATAL_FAILURE(from.Send(Request(Opcode::kWrite)));
      pollfd entry = {channel->fd, POLLIN, 0};
      ASSERT_TRUE(opened.TurnUntil([&] { return poll(&entry, 1, 0) == 1; })) << i;
      ibv_cq* told = nullptr;
      void* context = nullptr;
      ASSERT_EQ(ibv_get_cq_event(channel, &told, &context), 0);
      EXPECT_EQ(told, from.completions());
      ibv_ack_cq_events(told, 1);
      ASSERT_EQ(from.Poll(1).size(), 1u);
    }
  }
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

// libmlx5 is at both ends, then ours at one and libmlx5 at the other, then ours at both. Requests
// are outstanding each time that the driver changes. libmlx5 keeps its counters to itself, so it
// cannot follow ours.
TEST_F(OracleTest, shouldGoOnInMidStreamWhereLibmlx5Was) {
  const auto exchange = [this](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      NewData();
      const auto opcode = static_cast<Opcode>(random_() % verbs::kOpcodeCount);
      if (opcode == Opcode::kSendWithInvalidate) continue;
      SendRequest request = Request(opcode);
      request.inline_data = !verbs::IsAnswered(opcode) && random_() % 2 == 0;
      const std::vector<ScatterGather> sges =
          verbs::IsAtomic(opcode) ? std::vector{opened.Sge(0, 8)}
          : request.inline_data   ? InlineBuffers(random_() % (kInlineBytes + 1))
                                  : SomeBuffers(0, random_() % (kSges + 1));
      const bool there = random_() % 2 == 0;
      ASSERT_NO_FATAL_FAILURE(
          Exchange(there ? &one : &other, there ? &other : &one, request, sges));
    }
  };
  const auto take_over = [this](End* end, End* peer) {
    uint64_t& counter = opened.word(kRemote);
    const uint64_t before = counter;
    const ScatterGather result = opened.Sge(0, 8);
    SendRequest add = Request(Opcode::kFetchAndAdd);
    add.remote_address = reinterpret_cast<uintptr_t>(&counter);
    add.compare_add = 1;
    add.sges = {&result, 1};
    const ScatterGather into = opened.Sge(kRemote + kRoom, 64);
    ASSERT_NO_FATAL_FAILURE(end->Receive({77, {&into, 1}}));
    for (uint64_t i = 0; i < 3; ++i) {
      add.wr_id = 100 + i;
      ASSERT_NO_FATAL_FAILURE(end->Send(add));
    }
    end->TakeOver();
    ASSERT_NO_FATAL_FAILURE(peer->Send(Request(Opcode::kSendWithImmediate)));
    ASSERT_EQ(peer->Poll(1).size(), 1u);
    std::vector<uint64_t> taken;
    for (const Completion& completion : end->Poll(4)) taken.push_back(completion.wr_id);
    std::sort(taken.begin(), taken.end());
    EXPECT_EQ(taken, (std::vector<uint64_t>{77, 100, 101, 102}));
    EXPECT_EQ(counter, before + 3);
  };
  exchange(1000);
  ASSERT_NO_FATAL_FAILURE(take_over(&one, &other));
  exchange(1000);
  ASSERT_NO_FATAL_FAILURE(take_over(&other, &one));
  exchange(1000);
}

// libmlx5 resets a queue pair, and looks through the completion queue for what it had there: not in
// one that was taken by mlx5dv_init_obj. It would set the consumer index to where it polled last.
TEST_F(OracleTest, shouldGoOnAfterLibmlx5HasResetWhatOurDriverHas) {
  const auto exchange = [this] {
    for (int i = 0; i < 130; ++i) {  // twice around the completion queues
      ASSERT_NO_FATAL_FAILURE(Exchange(&one, &other, Request(Opcode::kSend), {opened.Sge(0, 8)}));
    }
  };
  one.TakeOver();
  other.TakeOver();
  exchange();
  for (End* const end : {&one, &other}) {
    const uint32_t consumed = end->consumed();
    end->Reset();
    EXPECT_EQ(end->consumed(), consumed);
  }
  one.Connect(other);
  other.Connect(one);
  exchange();
}

}  // namespace
}  // namespace baton::nic::oracle
