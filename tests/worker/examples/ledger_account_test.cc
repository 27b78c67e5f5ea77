#include "worker/examples/ledger/ledger_account.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "worker/examples/peer/reply_checker.h"

namespace baton::ledger {
namespace {

std::vector<uint8_t> Message(uint64_t sequence, uint64_t amount, size_t bytes = 64,
                             uint64_t client = 7) {
  std::vector<uint8_t> message(bytes, 0xa5);
  Request request{};
  request.magic = kRequestMagic;
  request.protocol = kProtocol;
  request.client = client;
  request.sequence = sequence;
  request.amount = amount;
  request.length = static_cast<uint32_t>(bytes);
  std::memcpy(message.data(), &request, sizeof(request));
  return message;
}

std::vector<uint8_t> Sealed(std::vector<uint8_t> message) {
  const uint64_t check = Checksum(message);
  std::memcpy(message.data() + offsetof(Request, check), &check, sizeof(check));
  return message;
}

std::vector<uint8_t> Resume(uint64_t sequence, uint64_t amount, uint64_t last, uint64_t total) {
  std::vector<uint8_t> message = Message(sequence, amount);
  Request request;
  std::memcpy(&request, message.data(), sizeof(request));
  request.flags = kFlagResume;
  request.resume_sequence = last;
  request.resume_total = total;
  std::memcpy(message.data(), &request, sizeof(request));
  return Sealed(message);
}

TEST(LedgerAccountTest, AddsUpAndNamesItsVersion) {
  LedgerAccount account;
  auto first = account.Apply(Sealed(Message(1, 10)), 1, ResumePolicy::kRefuse);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->total, 10u);
  EXPECT_EQ(first->version, 1u);
  auto second = account.Apply(Sealed(Message(2, 5, 256)), 2, ResumePolicy::kRefuse);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->total, 15u);
  EXPECT_EQ(second->sequence, 2u);
  EXPECT_EQ(second->version, 2u);
  EXPECT_EQ(second->amount, 5u);
  EXPECT_EQ(second->check, Checksum({reinterpret_cast<const uint8_t*>(&*second), 64}));
}

TEST(LedgerAccountTest, RefusesWhatDoesNotFollowAndStaysUnchanged) {
  LedgerAccount account;
  ASSERT_TRUE(account.Apply(Sealed(Message(1, 10)), 1, ResumePolicy::kRefuse).ok());
  const std::vector<std::vector<uint8_t>> wrong = {
      Sealed(Message(1, 10)),        // repeated
      Sealed(Message(3, 1)),         // one is missing
      Sealed(Message(2, 1, 64, 8)),  // of another client
      Message(2, 1),                 // without its check
      Resume(2, 1, 1, 10),           // resumed although nothing was lost
      std::vector<uint8_t>(63, 0),   // too short
      std::vector<uint8_t>(68, 0),   // no multiple of 8
      std::vector<uint8_t>(64, 0),   // no request
  };
  for (const auto& message : wrong) {
    EXPECT_FALSE(account.Apply(message, 1, ResumePolicy::kRefuse).ok());
    EXPECT_EQ(account.sequence(), 1u);
    EXPECT_EQ(account.total(), 10u);
  }
  EXPECT_TRUE(account.Apply(Sealed(Message(2, 1)), 1, ResumePolicy::kRefuse).ok());
}

TEST(LedgerAccountTest, RefusesEveryFlippedBit) {
  const std::vector<uint8_t> good = Sealed(Message(1, 10, 128));
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<uint8_t> bad = good;
    bad[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    LedgerAccount account;
    EXPECT_FALSE(account.Apply(bad, 1, ResumePolicy::kRefuse).ok()) << "bit " << bit;
  }
}

TEST(LedgerAccountTest, RefusesATruncatedMessage) {
  std::vector<uint8_t> message = Sealed(Message(1, 10, 128));
  message.resize(120);
  LedgerAccount account;
  EXPECT_FALSE(account.Apply(message, 1, ResumePolicy::kRefuse).ok());
}

TEST(LedgerAccountTest, ResumesOnlyANewAccountAndOnlyWhenAllowed) {
  LedgerAccount fresh;
  EXPECT_FALSE(fresh.Apply(Resume(6, 1, 5, 100), 1, ResumePolicy::kRefuse).ok());
  EXPECT_FALSE(fresh.Apply(Resume(7, 1, 5, 100), 1, ResumePolicy::kAllow).ok());
  auto reply = fresh.Apply(Resume(6, 1, 5, 100), 1, ResumePolicy::kAllow);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->total, 101u);
  EXPECT_FALSE(fresh.Apply(Resume(7, 1, 6, 101), 1, ResumePolicy::kAllow).ok());
}

TEST(LedgerAccountTest, StateSurvivesAndRefusesWhatItIsNot) {
  LedgerAccount account;
  ASSERT_TRUE(account.Apply(Sealed(Message(1, 10)), 1, ResumePolicy::kRefuse).ok());
  auto state = account.Save();
  auto loaded = LedgerAccount::Load(state, kAccountStateVersion);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->total(), 10u);
  EXPECT_TRUE(loaded->Apply(Sealed(Message(2, 1)), 2, ResumePolicy::kRefuse).ok());

  EXPECT_FALSE(LedgerAccount::Load(state, kAccountStateVersion + 1).ok());
  EXPECT_FALSE(LedgerAccount::Load({state.data(), state.size() - 1}, kAccountStateVersion).ok());
  for (size_t byte = 0; byte < state.size(); ++byte) {
    auto torn = state;
    torn[byte] ^= 0x40;
    EXPECT_FALSE(LedgerAccount::Load(torn, kAccountStateVersion).ok());
  }
  auto empty = LedgerAccount::Load({}, 0);
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->sequence(), 0u);
}

}  // namespace
}  // namespace baton::ledger
