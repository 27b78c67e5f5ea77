#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "lib/nic/memory_wire.h"

namespace baton::nic {
namespace {

// Both ends, which share nothing but the memory.
class ByteRing : public ::testing::Test {
 protected:
  ssize_t Write(std::string text) {
    const iovec iovecs[] = {{text.data(), text.size() / 2},
                            {text.data() + text.size() / 2, text.size() - text.size() / 2}};
    return writer.Write(iovecs, 2);
  }
  ssize_t Read(size_t size, std::string* text) {
    text->assign(size, '\0');
    const iovec iovecs[] = {{text->data(), size / 3}, {text->data() + size / 3, size - size / 3}};
    const ssize_t count = reader.Read(iovecs, 2);
    text->resize(count < 0 ? 0 : static_cast<size_t>(count));
    return count;
  }

  std::unique_ptr<MemoryWireLayout> memory = std::make_unique<MemoryWireLayout>();
  RingControl& control = memory->to_peer;
  RingWriter writer{&control, memory->to_peer_bytes};
  RingReader reader{&control, memory->to_peer_bytes};
  std::string text;
};

// The numbers of wire.md.
TEST_F(ByteRing, shouldKeepTheLayoutOfTheSpecification) {
  ASSERT_EQ(Write("abc"), 3);
  ASSERT_EQ(Read(2, &text), 2);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(memory.get());
  const auto word = [bytes](size_t offset) {
    uint64_t value;
    std::memcpy(&value, bytes + offset, sizeof(value));
    return value;
  };
  EXPECT_EQ(word(0), 3u);
  EXPECT_EQ(word(64), 2u);
  EXPECT_EQ(std::memcmp(bytes + 4096, "abc", 3), 0);
  control.sleeping = control.waiting = 7;
  EXPECT_EQ(bytes[8], 7u);
  EXPECT_EQ(bytes[72], 7u);
  memory->from_peer.tail = 5;
  EXPECT_EQ(word(128), 5u);
  memory->from_peer_bytes[0] = 9;
  EXPECT_EQ(bytes[4096 + 65'536], 9u);
  EXPECT_EQ(sizeof(*memory), 135'168u);
}

TEST_F(ByteRing, shouldHandOverBytesInOrderRoundAndRound) {
  std::string expected, got;
  for (size_t i = 0; got.size() < 5 * kRingBytes; ++i) {
    std::string piece(i * 37 % 3001, static_cast<char>('a' + i % 26));
    const ssize_t written = Write(piece);
    ASSERT_GE(written, 0);
    expected.append(piece, 0, static_cast<size_t>(written));
    ASSERT_GE(Read(i * 41 % 3003, &text), 0);
    got += text;
  }
  while (Read(1000, &text) > 0) got += text;
  EXPECT_EQ(got, expected);
}

TEST_F(ByteRing, shouldWriteNoMoreThanFits) {
  EXPECT_EQ(Write(std::string(kRingBytes - 10, 'x')), kRingBytes - 10);
  EXPECT_EQ(Write(std::string(30, 'y')), 10);
  EXPECT_EQ(Write("z"), 0);
  EXPECT_FALSE(writer.HasRoom());
  EXPECT_EQ(Read(kRingBytes, &text), kRingBytes);
  EXPECT_TRUE(writer.HasRoom());
  EXPECT_EQ(text.substr(kRingBytes - 11), "xyyyyyyyyyy");
}

TEST_F(ByteRing, shouldWakeASleepingReaderOnce) {
  EXPECT_EQ(Write("a"), 1);
  EXPECT_FALSE(writer.ReaderSleeps());    // it is awake
  EXPECT_FALSE(reader.PrepareToSleep());  // and may not sleep: there is something
  EXPECT_EQ(Read(10, &text), 1);
  EXPECT_TRUE(reader.PrepareToSleep());
  EXPECT_EQ(Write("b"), 1);
  EXPECT_TRUE(writer.ReaderSleeps());
  EXPECT_EQ(Write("c"), 1);
  EXPECT_FALSE(writer.ReaderSleeps());  // it was woken
  EXPECT_EQ(Read(10, &text), 2);
  EXPECT_TRUE(reader.PrepareToSleep());
  reader.Awake();
  EXPECT_EQ(Write("d"), 1);
  EXPECT_FALSE(writer.ReaderSleeps());
}

TEST_F(ByteRing, shouldWakeAWriterThatWaitsForRoomOnce) {
  EXPECT_FALSE(writer.PrepareToWait());  // there is room
  EXPECT_FALSE(reader.WriterWaits());
  EXPECT_EQ(Write(std::string(kRingBytes, 'x')), kRingBytes);
  EXPECT_TRUE(writer.PrepareToWait());
  EXPECT_EQ(Read(1, &text), 1);
  EXPECT_TRUE(reader.WriterWaits());
  EXPECT_EQ(Read(1, &text), 1);
  EXPECT_FALSE(reader.WriterWaits());
}

TEST_F(ByteRing, shouldRefuseAnImpossiblePositionOfTheWriter) {
  EXPECT_EQ(Write("abcdef"), 6);
  EXPECT_EQ(Read(4, &text), 4);
  for (const uint64_t tail : {uint64_t{3}, uint64_t{4} + kRingBytes + 1, ~uint64_t{0}}) {
    control.tail = tail;
    EXPECT_EQ(Read(4, &text), -1) << tail;
  }
}

TEST_F(ByteRing, shouldRefuseAnImpossiblePositionOfTheReader) {
  EXPECT_EQ(Write(std::string(kRingBytes, 'x')), kRingBytes);
  EXPECT_EQ(Read(100, &text), 100);
  EXPECT_EQ(Write("y"), 1);  // it has seen 100
  EXPECT_EQ(Write(std::string(99, 'y')), 99);
  for (const uint64_t head : {uint64_t{99}, uint64_t{100} + kRingBytes + 1, ~uint64_t{0}}) {
    control.head = head;
    EXPECT_EQ(Write("z"), -1) << head;
  }
}

// What the writer changes behind its tail, or the reader in the bytes, is nobody's trouble: each
// side keeps its own position.
TEST_F(ByteRing, shouldNotBelieveItsOwnPositionInTheMemory) {
  EXPECT_EQ(Write("abc"), 3);
  control.head = 77;  // by the peer: it is ours to store
  EXPECT_EQ(Read(10, &text), 3);
  EXPECT_EQ(text, "abc");
  EXPECT_EQ(control.head, 3u);
}

// Two threads that sleep whenever they may: a lost wake-up would end the test by its time limit.
TEST_F(ByteRing, shouldLoseNoWakeUpAndNoByteBetweenThreads) {
  constexpr size_t kTotal = 8 << 20;
  std::atomic<uint32_t> to_reader{0}, to_writer{0};
  const auto wait = [](std::atomic<uint32_t>& word) {
    word.wait(0);
    word.store(0);
  };
  const auto wake = [](std::atomic<uint32_t>& word) {
    word.store(1);
    word.notify_one();
  };
  std::thread thread([&] {
    std::string bytes(5000, '\0');
    for (size_t sent = 0; sent < kTotal;) {
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>((sent + i) % 251);
      const iovec iovecs[] = {{bytes.data(), std::min(bytes.size(), kTotal - sent)}};
      const ssize_t count = writer.Write(iovecs, 1);
      ASSERT_GE(count, 0);
      sent += static_cast<size_t>(count);
      if (count > 0 && writer.ReaderSleeps()) wake(to_reader);
      if (count == 0 && writer.PrepareToWait()) wait(to_writer);
    }
  });
  size_t wrong = 0;
  for (size_t received = 0; received < kTotal;) {
    const ssize_t count = Read(7000, &text);
    ASSERT_GE(count, 0);
    for (const char byte : text) wrong += byte != static_cast<char>(received++ % 251);
    if (count > 0 && reader.WriterWaits()) wake(to_writer);
    if (count == 0 && reader.PrepareToSleep()) wait(to_reader);
  }
  thread.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace baton::nic
