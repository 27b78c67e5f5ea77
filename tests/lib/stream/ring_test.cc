// Both ends of a stream over a wire that is a model: it delivers in order, when the test says so.
#include "lib/stream/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <random>
#include <vector>

namespace baton::stream {
namespace {

using Refusal = StreamEnd::Refusal;
using Kind = StreamEnd::Arrival::Kind;

constexpr uint32_t kRingBytes = 64 * kUnitBytes;

Greeting GreetingOf(uint32_t ring_bytes, uint16_t window) {
  return {kGreetingMagic, kStreamVersion, window, ring_bytes, 1, 4096};
}

// What the bytes of message `number` are.
uint8_t ByteOf(uint64_t number, uint32_t at) {
  return static_cast<uint8_t>(number * 31 + at + (at >> 8));
}

// A bell on its way to an end: the immediate, and the bytes that were written with it.
struct Bells {
  uint32_t immediate = 0;
  uint64_t offset = 0;
  std::vector<uint8_t> bytes;
};

class ModelEnd {
 public:
  ModelEnd(uint32_t ring_bytes, uint16_t window, const Greeting& peer, uint16_t greeted)
      : end_(StreamEnd::Begin(peer, ring_bytes, window, greeted)), ring_(ring_bytes) {
    Post();
  }
  void Join(ModelEnd* peer) { peer_ = peer; }

  // Sends the next message, of this length. False: it was refused.
  bool Send(uint32_t length) {
    const StreamEnd::Placement place = end_.Place(length);
    if (place.refusal != Refusal::kNone) {
      if (place.refusal != Refusal::kNoRoom) return false;
      if (const auto ask = end_.Ask(length)) Ring({*ask, 0, {}});
      return false;
    }
    Bells bell{place.immediate, place.offset, std::vector<uint8_t>(length)};
    for (uint32_t i = 0; i < length; ++i) bell.bytes[i] = ByteOf(sent_, i);
    EXPECT_LE(place.offset + length, peer_->ring_.size());
    lengths_.push_back(length);
    ++sent_;
    Ring(std::move(bell));
    return true;
  }
  void Report() {
    if (const auto report = end_.Report()) {
      ++reports;
      Ring({*report, 0, {}});
    }
  }

  // The oldest that is on the way to this end arrives.
  bool Arrive() {
    if (wire_.empty()) return false;
    const Bells bell = std::move(wire_.front());
    wire_.pop_front();
    if (receives_ == 0) {
      ADD_FAILURE() << "receiver not ready";
      return false;
    }
    --receives_;
    std::copy(bell.bytes.begin(), bell.bytes.end(),
              ring_.begin() + static_cast<std::ptrdiff_t>(bell.offset));
    const auto arrival = end_.OnBell(bell.immediate, static_cast<uint32_t>(bell.bytes.size()));
    EXPECT_NE(arrival.kind, Kind::kBroken);
    Post();
    if (arrival.kind == Kind::kMessage) {
      EXPECT_EQ(arrival.offset, bell.offset);
      EXPECT_EQ(arrival.length, bell.bytes.size());
      unread_.push_back(arrival);
    }
    return true;
  }

  // The oldest message is read, and nothing has overwritten it.
  bool Read() {
    if (unread_.empty()) return false;
    const StreamEnd::Arrival message = unread_.front();
    unread_.pop_front();
    EXPECT_EQ(message.length, peer_->lengths_.at(read_));
    for (uint32_t i = 0; i < message.length; ++i) {
      if (ring_[message.offset + i] == ByteOf(read_, i)) continue;
      ADD_FAILURE() << "message " << read_ << " is torn at byte " << i;
      break;
    }
    ++read_;
    EXPECT_TRUE(end_.Release(message.end));
    return true;
  }

  // A successor has what was committed, and nothing else.
  void Succeed() {
    const StreamState saved = end_.state();
    std::optional<StreamEnd> loaded = StreamEnd::Load(saved);
    ASSERT_TRUE(loaded.has_value());
    end_ = *loaded;
  }

  // What the other end may send, what is on the way, and what is to be returned are all receives.
  void Check() const {
    const SenderState& theirs = peer_->end_.state().sender;
    const ReceiverState& ours = end_.state().receiver;
    const uint32_t left = theirs.allowed - theirs.bells;
    EXPECT_LE(left + wire_.size(), receives_);  // or a receiver is not ready
    EXPECT_EQ(receives_ + ours.owed, ours.window);
    EXPECT_LE(theirs.tail - theirs.freed, ours.ring_units);
    EXPECT_LE(ours.tail, theirs.tail);
    const uint16_t unreturned = static_cast<uint16_t>(ours.posted - theirs.allowed);
    EXPECT_EQ(left + wire_.size() + unreturned + ours.owed, ours.window);
  }

  uint64_t sent() const { return sent_; }
  uint64_t read() const { return read_; }
  const StreamState& state() const { return end_.state(); }
  StreamEnd& end() { return end_; }

  int reports = 0;

 private:
  void Post() {
    while (end_.owed() > 0) {
      ++receives_;
      end_.NotePosted();
    }
  }
  void Ring(Bells bell) { peer_->wire_.push_back(std::move(bell)); }

  StreamEnd end_;
  std::vector<uint8_t> ring_;
  ModelEnd* peer_ = nullptr;
  std::deque<Bells> wire_;  // to this end
  std::deque<StreamEnd::Arrival> unread_;
  std::vector<uint32_t> lengths_;  // sent
  uint64_t sent_ = 0, read_ = 0;
  uint64_t receives_ = 0;
};

class Model {
 public:
  // `late`: the second end posts its receives after it was connected.
  Model(uint32_t ring_bytes, uint16_t window, bool late = false)
      : a(ring_bytes, window, GreetingOf(ring_bytes, late ? 0 : window), window),
        b(ring_bytes, window, GreetingOf(ring_bytes, window), late ? 0 : window) {
    a.Join(&b);
    b.Join(&a);
  }
  // Delivers, reads and reports until nothing changes.
  void Drain() {
    for (int turn = 0; turn < 10'000; ++turn) {
      bool changed = false;
      for (ModelEnd* end : {&a, &b}) {
        while (end->Arrive()) changed = true;
        while (end->Read()) changed = true;
        end->Report();
      }
      if (!changed) return;
    }
    FAIL() << "reports do not end";
  }
  ModelEnd a, b;
};

TEST(RingTest, shouldTellItsGreeting) {
  const Greeting greeting = {kGreetingMagic, kStreamVersion, 16, kRingBytes, 7, 1 << 20};
  const auto decoded = DecodeGreeting(Encode(greeting) + "the application's");
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->address, greeting.address);
  EXPECT_EQ(decoded->rkey, greeting.rkey);
}

TEST(RingTest, shouldRefuseWrongGreetings) {
  const Greeting right = GreetingOf(kRingBytes, 16);
  EXPECT_FALSE(DecodeGreeting("").has_value());
  EXPECT_FALSE(DecodeGreeting(Encode(right).substr(1)).has_value());
  std::array<Greeting, 5> wrong = {right, right, right, right, right};
  wrong[0].magic = 0;
  wrong[1].version = kStreamVersion + 1;
  wrong[2].window = kMaxWindow + 1;
  wrong[3].ring_bytes = kRingBytes + 1;
  wrong[4].ring_bytes = 0;
  for (const Greeting& greeting : wrong) {
    EXPECT_FALSE(DecodeGreeting(Encode(greeting)).has_value());
  }
}

TEST(RingTest, shouldPackAndUnpackBells) {
  const Bell bell = Unpack(Pack({BellKind::kAsk, 0x3f'ffff, 0xab}));
  EXPECT_EQ(bell.kind, BellKind::kAsk);
  EXPECT_EQ(bell.head, 0x3f'ffffu);
  EXPECT_EQ(bell.posted, 0xab);
}

TEST(RingTest, shouldPlaceMessagesOneBehindTheOther) {
  StreamEnd end = StreamEnd::Begin(GreetingOf(kRingBytes, 16), kRingBytes, 16, 16);
  EXPECT_EQ(end.Place(1).offset, 0u);
  EXPECT_EQ(end.Place(kUnitBytes).offset, kUnitBytes);
  EXPECT_EQ(end.Place(kUnitBytes + 1).offset, 2 * kUnitBytes);
  EXPECT_EQ(end.Place(0).offset, 4 * kUnitBytes);
  EXPECT_EQ(end.Place(7).offset, 5 * kUnitBytes);
}

TEST(RingTest, shouldKeepTheLastBellForReports) {
  Model model(kRingBytes, 4);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(model.a.Send(1));
  EXPECT_EQ(model.a.end().MayPlace(1), Refusal::kNoBell);
  model.Drain();
  EXPECT_TRUE(model.a.Send(1));
}

TEST(RingTest, shouldRefuseWhatThePeerHasNoRoomFor) {
  Model model(kRingBytes, 16);
  EXPECT_EQ(model.a.end().MayPlace(kRingBytes + 1), Refusal::kTooLong);
  EXPECT_TRUE(model.a.Send(kRingBytes));
  EXPECT_EQ(model.a.end().MayPlace(1), Refusal::kNoRoom);
  EXPECT_EQ(model.a.end().MayPlace(0), Refusal::kNoRoom);
}

TEST(RingTest, shouldTakeAMessageAsLongAsTheRingWhereverTheTailIs) {
  Model model(kRingBytes, 16);
  for (uint32_t units = 1; units < 64; ++units) {
    ASSERT_TRUE(model.a.Send(units * kUnitBytes));
    if (!model.a.Send(kRingBytes)) {
      model.Drain();
      ASSERT_TRUE(model.a.Send(kRingBytes)) << units;
    }
    model.Drain();
    EXPECT_EQ(model.b.read(), 2 * units);
    model.a.Check();
    model.b.Check();
    EXPECT_EQ(model.a.state().sender.freed, model.a.state().sender.tail);
  }
}

TEST(RingTest, shouldComeToRestWhenNothingIsSent) {
  Model model(kRingBytes, kMinWindow);
  for (int i = 0; i < 100; ++i) {
    while (model.a.Send(1)) {
    }
    while (model.b.Send(1)) {
    }
    model.Drain();
  }
  const int before = model.a.reports + model.b.reports;
  model.Drain();
  EXPECT_EQ(model.a.reports + model.b.reports, before);
}

TEST(RingTest, shouldNotSendToAnEndThatHasNotReported) {
  Model model(kRingBytes, 16, /*late=*/true);
  EXPECT_EQ(model.a.end().MayPlace(1), Refusal::kNoBell);
  model.b.Report();
  EXPECT_TRUE(model.a.Arrive());
  EXPECT_TRUE(model.a.Send(1));
  model.Drain();
  model.a.Check();
  model.b.Check();
}

TEST(RingTest, shouldEndAStreamWhosePeerIsWrong) {
  const auto on_bell = [](const Bell& bell, uint32_t byte_len) {
    StreamEnd end = StreamEnd::Begin(GreetingOf(kRingBytes, 16), kRingBytes, 16, 16);
    while (end.owed() > 0) end.NotePosted();
    return end.OnBell(Pack(bell), byte_len).kind;
  };
  EXPECT_EQ(on_bell({BellKind::kMessage, 0, 16}, kRingBytes), Kind::kMessage);
  EXPECT_EQ(on_bell({BellKind::kMessage, 0, 16}, kRingBytes + 1), Kind::kBroken);
  EXPECT_EQ(on_bell({BellKind::kMessage, 0, 16}, std::numeric_limits<uint32_t>::max()),
            Kind::kBroken);
  EXPECT_EQ(on_bell({BellKind::kWrapped, 0, 16}, 1), Kind::kBroken);
  EXPECT_EQ(on_bell({BellKind::kReport, 0, 16}, 1), Kind::kBroken);
  EXPECT_EQ(on_bell({BellKind::kReport, 1, 16}, 0), Kind::kBroken);   // frees what was not sent
  EXPECT_EQ(on_bell({BellKind::kReport, 0, 200}, 0), Kind::kBroken);  // posts too much
  EXPECT_EQ(on_bell({BellKind::kReport, 0, 16}, 0), Kind::kReport);
}

TEST(RingTest, shouldNotLoadWhatIsNoState) {
  StreamState state = {};
  EXPECT_FALSE(StreamEnd::Load(state).has_value());
  state = StreamEnd::Begin(GreetingOf(kRingBytes, 16), kRingBytes, 16, 16).state();
  EXPECT_TRUE(StreamEnd::Load(state).has_value());
  state.receiver.version = kStreamVersion + 1;
  EXPECT_FALSE(StreamEnd::Load(state).has_value());
}

TEST(RingTest, shouldNotReleaseWhatHasNotArrived) {
  Model model(kRingBytes, 16);
  EXPECT_FALSE(model.b.end().Release(1));
  EXPECT_TRUE(model.b.end().Release(0));
}

// Positions beyond 2^32 units, and reports beyond 2^22 and 2^8.
TEST(RingTest, shouldCountOnForEver) {
  const Greeting greeting = GreetingOf(kMaxRingBytes, 8);
  StreamEnd sender = StreamEnd::Begin(greeting, kMaxRingBytes, 8, 8);
  StreamEnd receiver = StreamEnd::Begin(greeting, kMaxRingBytes, 8, 8);
  for (StreamEnd* end : {&sender, &receiver}) {
    while (end->owed() > 0) end->NotePosted();
  }
  const auto pass = [](StreamEnd& to, uint32_t immediate, uint32_t length) {
    const StreamEnd::Arrival arrival = to.OnBell(immediate, length);
    to.NotePosted();
    return arrival;
  };
  for (int i = 0; i < 5000; ++i) {
    const StreamEnd::Placement place = sender.Place(kMaxRingBytes);
    ASSERT_EQ(place.refusal, Refusal::kNone);
    const auto message = pass(receiver, place.immediate, kMaxRingBytes);
    ASSERT_EQ(message.kind, Kind::kMessage);
    ASSERT_TRUE(receiver.Release(message.end));
    const auto report = receiver.Report();
    ASSERT_TRUE(report.has_value());
    ASSERT_EQ(pass(sender, *report, 0).kind, Kind::kReport);
  }
  EXPECT_GT(sender.state().sender.tail, uint64_t{1} << 32);
  EXPECT_EQ(sender.state().sender.freed, sender.state().sender.tail);
}

// Everything at random: lengths, delays, a reader that sleeps, successors.
class RandomRingTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  uint32_t DrawLength(uint32_t ring_bytes) {
    switch (Draw(4)) {
      case 0:
        return Draw(2 * kUnitBytes);
      case 1:
        return Draw(ring_bytes / 4);
      case 2:
        return Draw(ring_bytes + 1);
      default:
        return Draw(8) == 0 ? ring_bytes : Draw(kUnitBytes);
    }
  }
  std::mt19937_64 random_{GetParam()};
};

TEST_P(RandomRingTest, shouldLoseTearAndRefuseNothing) {
  const uint32_t ring_bytes = kUnitBytes * (4 + Draw(60));
  const auto window = static_cast<uint16_t>(kMinWindow + Draw(12));
  Model model(ring_bytes, window, Draw(2) == 0);
  const std::array<ModelEnd*, 2> ends = {&model.a, &model.b};
  std::array<std::optional<uint32_t>, 2> wanted;
  for (uint32_t step = 0; step < 20'000; ++step) {
    const uint32_t which = Draw(2);
    ModelEnd& end = *ends[which];
    switch (Draw(6)) {
      case 0:
      case 1:
        if (!wanted[which]) wanted[which] = DrawLength(ring_bytes);
        if (end.Send(*wanted[which])) wanted[which].reset();
        break;
      case 2:
        end.Arrive();
        break;
      case 3:
        if (step / 1000 % 2 == which) end.Read();  // the other one sleeps
        break;
      case 4:
        end.Report();
        break;
      default:
        end.Succeed();
    }
    model.a.Check();
    model.b.Check();
    if (HasFailure()) return;
  }
  // What was refused is taken in the end.
  for (int round = 0; round < 4; ++round) {
    model.Drain();
    for (size_t i = 0; i < ends.size(); ++i) {
      if (wanted[i] && ends[i]->Send(*wanted[i])) wanted[i].reset();
    }
  }
  model.Drain();
  EXPECT_FALSE(wanted[0] || wanted[1]);
  EXPECT_EQ(model.a.sent(), model.b.read());
  EXPECT_EQ(model.b.sent(), model.a.read());
  EXPECT_GT(model.a.sent() + model.b.sent(), 100u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomRingTest, ::testing::Range(1u, 51u));

}  // namespace
}  // namespace baton::stream
