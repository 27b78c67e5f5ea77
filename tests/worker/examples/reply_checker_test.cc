// The checker is what every promise of Baton is measured with: each defect is injected here, and
// has to be counted as what it is.
#include "worker/examples/peer/reply_checker.h"

#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/examples/reseal.h"
#include "worker/examples/ledger/ledger_account.h"

namespace baton::peer {
namespace {

using ledger::LedgerAccount;
using ledger::Reply;
using ledger::ResumePolicy;
using Message = std::vector<uint8_t>;

constexpr uint64_t kClient = 42;

Message BytesOf(const Reply& reply) {
  Message bytes(sizeof(reply));
  std::memcpy(bytes.data(), &reply, sizeof(reply));
  return bytes;
}

// A checker and the account that it talks to.
class ReplyCheckerTest : public ::testing::Test {
 protected:
  Message NextRequest(size_t bytes = 64) {
    if (!checker_.HasUnsent()) checker_.Intend(now_);
    Message message(bytes);
    checker_.WriteUnsent(absl::MakeSpan(message));
    checker_.MarkSent();
    return message;
  }
  Reply Serve(const Message& request, ResumePolicy policy = ResumePolicy::kRefuse) {
    auto reply = account_.Apply(request, 1, policy);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? *reply : Reply{};
  }
  ReplyChecker::Verdict Take(const Reply& reply) { return checker_.OnReply(BytesOf(reply), now_); }
  void ExpectDefects(const Defects& expected) {
    EXPECT_EQ(checker_.defects().lost, expected.lost);
    EXPECT_EQ(checker_.defects().duplicated, expected.duplicated);
    EXPECT_EQ(checker_.defects().reordered, expected.reordered);
    EXPECT_EQ(checker_.defects().corrupt, expected.corrupt);
    EXPECT_EQ(checker_.defects().wrong_total, expected.wrong_total);
  }

  uint64_t now_ = 1'000'000;
  ReplyChecker checker_{kClient, 8};
  LedgerAccount account_;
};

TEST_F(ReplyCheckerTest, CleanTrafficHasNoDefect) {
  std::mt19937 random(1);
  std::deque<Reply> replies;
  uint64_t answered = 0;
  while (answered < 10'000) {
    if (checker_.HasRoom() && random() % 2 == 0) {
      replies.push_back(Serve(NextRequest(64 + 8 * (random() % 4))));
    } else if (!replies.empty()) {
      now_ += 100;
      const auto verdict = Take(replies.front());
      ASSERT_TRUE(verdict.answered) << verdict.defect;
      EXPECT_EQ(verdict.sequence, ++answered);
      replies.pop_front();
    }
  }
  ExpectDefects({});
}

TEST_F(ReplyCheckerTest, WindowBoundsWhatIsOpen) {
  for (int i = 0; i < 8; ++i) NextRequest();
  EXPECT_FALSE(checker_.HasRoom());
  EXPECT_EQ(checker_.open(), 8u);
}

TEST_F(ReplyCheckerTest, MeasuresLatencyFromTheIntention) {
  checker_.Intend(now_);
  now_ += 500;  // it waits for its connection
  const Reply reply = Serve(NextRequest());
  now_ += 300;
  EXPECT_EQ(Take(reply).latency, 800u);
}

TEST_F(ReplyCheckerTest, LostReplyIsLostAfterItsTime) {
  Serve(NextRequest());  // its reply goes missing
  const Reply second = Serve(NextRequest());
  EXPECT_TRUE(Take(second).answered);
  EXPECT_EQ(checker_.open(), 1u);
  now_ += 999;
  EXPECT_EQ(checker_.Expire(now_, 1000), 0u);
  now_ += 1;
  EXPECT_EQ(checker_.Expire(now_, 1000), 1u);
  EXPECT_EQ(checker_.open(), 0u);
  ExpectDefects({.lost = 1});
  // Its effect was not lost, so the totals after it are right.
  EXPECT_TRUE(Take(Serve(NextRequest())).answered);
  ExpectDefects({.lost = 1});
}

TEST_F(ReplyCheckerTest, LostRequestsBlockAFullWindowOnlyUntilTheirTime) {
  for (int i = 0; i < 8; ++i) NextRequest();
  EXPECT_EQ(checker_.Expire(now_ + 1000, 1000), 8u);
  EXPECT_TRUE(checker_.HasRoom());
  ExpectDefects({.lost = 8});
}

TEST_F(ReplyCheckerTest, LostEffectShowsInEveryLaterTotal) {
  EXPECT_TRUE(Take(Serve(NextRequest())).answered);
  const LedgerAccount before = account_;
  Reply second = Serve(NextRequest());
  EXPECT_TRUE(Take(second).answered);
  // A service that forgets the second request's amount, and claims its sequence.
  for (uint64_t wrong = 1; wrong <= 3; ++wrong) {
    Reply reply = Serve(NextRequest());
    reply.total -= second.total - before.total();
    Reseal(&reply);
    EXPECT_FALSE(Take(reply).defect.empty());
    ExpectDefects({.wrong_total = wrong});
  }
}

TEST_F(ReplyCheckerTest, EffectAppliedTwiceIsAWrongTotal) {
  Reply reply = Serve(NextRequest());
  reply.total += reply.amount;
  Reseal(&reply);
  EXPECT_TRUE(Take(reply).answered);
  ExpectDefects({.wrong_total = 1});
}

TEST_F(ReplyCheckerTest, RepeatedReplyIsDuplicated) {
  const Reply reply = Serve(NextRequest());
  EXPECT_TRUE(Take(reply).answered);
  EXPECT_FALSE(Take(reply).answered);
  ExpectDefects({.duplicated = 1});
}

TEST_F(ReplyCheckerTest, RepeatedReplyBehindAHoleIsDuplicated) {
  const Reply first = Serve(NextRequest());
  const Reply second = Serve(NextRequest());
  EXPECT_TRUE(Take(second).answered);
  EXPECT_FALSE(Take(second).answered);
  ExpectDefects({.duplicated = 1});
  EXPECT_TRUE(Take(first).answered);
  ExpectDefects({.duplicated = 1, .reordered = 1});
}

TEST_F(ReplyCheckerTest, OldReplyRepeatedMuchLaterIsDuplicated) {
  const Reply first = Serve(NextRequest());
  EXPECT_TRUE(Take(first).answered);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Take(Serve(NextRequest())).answered);
  EXPECT_FALSE(Take(first).answered);
  ExpectDefects({.duplicated = 1});
}

TEST_F(ReplyCheckerTest, SwappedRepliesAreReordered) {
  const Reply first = Serve(NextRequest());
  const Reply second = Serve(NextRequest());
  EXPECT_TRUE(Take(second).answered);
  EXPECT_TRUE(Take(first).answered);
  ExpectDefects({.reordered = 1});
  EXPECT_TRUE(Take(Serve(NextRequest())).answered);
  ExpectDefects({.reordered = 1});
}

TEST_F(ReplyCheckerTest, ReplyAfterItWasGivenUpIsLostAndReordered) {
  const Reply late = Serve(NextRequest());
  checker_.Expire(now_ + 1000, 1000);
  EXPECT_FALSE(Take(late).answered);
  ExpectDefects({.lost = 1, .reordered = 1});
  EXPECT_FALSE(Take(late).answered);
  ExpectDefects({.lost = 1, .duplicated = 1, .reordered = 1});
}

TEST_F(ReplyCheckerTest, EveryFlippedBitIsCorrupt) {
  const Reply good = Serve(NextRequest());
  const Message bytes = BytesOf(good);
  uint64_t corrupt = 0;
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Message bad = bytes;
    bad[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    EXPECT_FALSE(checker_.OnReply(bad, now_).answered) << "bit " << bit;
    ExpectDefects({.corrupt = ++corrupt});
  }
  EXPECT_TRUE(Take(good).answered);
}

TEST_F(ReplyCheckerTest, ShortReplyIsCorrupt) {
  Message bytes = BytesOf(Serve(NextRequest()));
  bytes.pop_back();
  EXPECT_FALSE(checker_.OnReply(bytes, now_).answered);
  EXPECT_FALSE(checker_.OnReply({}, now_).answered);
  ExpectDefects({.corrupt = 2});
}

TEST_F(ReplyCheckerTest, ReplyOfAnotherConnectionIsCorrupt) {
  ReplyChecker other(kClient + 1, 8);
  other.Intend(now_);
  Message message(64);
  other.WriteUnsent(absl::MakeSpan(message));
  NextRequest();
  EXPECT_FALSE(Take(Serve(message)).answered);
  ExpectDefects({.corrupt = 1});
}

TEST_F(ReplyCheckerTest, ReplyToWhatWasNeverSentIsCorrupt) {
  Reply reply = Serve(NextRequest());
  reply.sequence = 2;
  Reseal(&reply);
  EXPECT_FALSE(Take(reply).answered);
  // Intended is not sent.
  checker_.Intend(now_);
  EXPECT_FALSE(Take(reply).answered);
  ExpectDefects({.corrupt = 2});
}

TEST_F(ReplyCheckerTest, ReplyThatEchoesAnotherRequestIsCorrupt) {
  Reply reply = Serve(NextRequest());
  reply.request_check ^= 1;
  Reseal(&reply);
  EXPECT_FALSE(Take(reply).answered);
  reply.request_check ^= 1;
  reply.amount += 1;
  Reseal(&reply);
  EXPECT_FALSE(Take(reply).answered);
  ExpectDefects({.corrupt = 2});
}

TEST_F(ReplyCheckerTest, WhatIsOpenAtTheEndIsLost) {
  NextRequest();
  NextRequest();
  EXPECT_EQ(checker_.GiveUp(), 2u);
  EXPECT_EQ(checker_.open(), 0u);
  EXPECT_FALSE(checker_.HasUnsent());
  ExpectDefects({.lost = 2});
}

TEST_F(ReplyCheckerTest, RewindResumesAnAccountThatWasLost) {
  EXPECT_TRUE(Take(Serve(NextRequest())).answered);
  EXPECT_TRUE(Take(Serve(NextRequest())).answered);
  Serve(NextRequest());  // applied, its reply dies with the service
  NextRequest();         // never arrives
  account_ = LedgerAccount();
  checker_.Rewind();
  for (uint64_t sequence = 3; sequence <= 6; ++sequence) {
    const auto verdict = Take(Serve(NextRequest(), ResumePolicy::kAllow));
    ASSERT_TRUE(verdict.answered) << verdict.defect;
    EXPECT_EQ(verdict.sequence, sequence);
  }
  ExpectDefects({});
}

TEST_F(ReplyCheckerTest, RewindBeforeTheFirstReplyStartsANewAccount) {
  Serve(NextRequest());
  account_ = LedgerAccount();
  checker_.Rewind();
  EXPECT_TRUE(Take(Serve(NextRequest(), ResumePolicy::kAllow)).answered);
  ExpectDefects({});
}

TEST_F(ReplyCheckerTest, RewindTwiceBeforeAReplyStillResumes) {
  EXPECT_TRUE(Take(Serve(NextRequest())).answered);
  NextRequest();
  checker_.Rewind();
  NextRequest();
  checker_.Rewind();
  account_ = LedgerAccount();
  EXPECT_TRUE(Take(Serve(NextRequest(), ResumePolicy::kAllow)).answered);
  ExpectDefects({});
}

}  // namespace
}  // namespace baton::peer
