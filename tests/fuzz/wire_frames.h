// Frames of the soft device's wire, right and nearly right, out of a fuzz program.
#ifndef TESTS_FUZZ_WIRE_FRAMES_H_
#define TESTS_FUZZ_WIRE_FRAMES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>

#include "lib/base/check.h"
#include "lib/nic/wire.h"
#include "tests/fuzz/program.h"

namespace baton::fuzz {

// What a peer knows that wants to do harm.
struct WireTargets {
  uint64_t address = 0;  // of remotely accessible memory, and its size
  uint64_t bytes = 0;
  uint32_t rkey = 0;
  uint32_t other_rkey = 0;  // of memory that is not
};

class WireFrames {
 public:
  explicit WireFrames(const WireTargets& targets) : targets_(targets) {}

  // The next frame; numbers its messages as they must be, most of the time.
  std::string Next(Program& program) {
    using verbs::soft::FrameType;
    static constexpr FrameType kTypes[] = {
        FrameType::kSend,
        FrameType::kWrite,
        FrameType::kRead,
        FrameType::kCompareAndSwap,
        FrameType::kFetchAndAdd,
        FrameType::kAck,
        FrameType::kNak,
        FrameType::kReceiverNotReady,
        FrameType::kReadResponse,
        FrameType::kAtomicResponse,
        FrameType::kConnectRequest,
        FrameType::kConnectReply,
        FrameType::kReadyToUse,
        FrameType::kReject,
        FrameType::kDisconnectRequest,
        FrameType::kDisconnectReply,
    };
    static constexpr FrameType kRareTypes[] = {FrameType::kMemoryOffer, FrameType::kMemoryReady,
                                               FrameType::kMemoryRefused};
    const uint8_t which = program.Byte();
    const FrameType type =
        which < 240 ? kTypes[which % std::size(kTypes)] : kRareTypes[which % std::size(kRareTypes)];
    const uint8_t how = program.Byte();
    uint8_t flags = verbs::soft::kFirst | verbs::soft::kLast;
    if (how & 1) flags = program.Byte() & verbs::soft::kAllFlags;
    const bool request = type >= FrameType::kSend && type <= FrameType::kFetchAndAdd;
    uint32_t sequence = request ? sequence_ : answered_;
    if (how & 2) sequence = static_cast<uint32_t>(program.Near(sequence));
    std::string body = Body(type, program);
    body.append(PayloadSize(type, flags, program), static_cast<char>(how));
    verbs::soft::FrameHeader header = {verbs::soft::kWireVersion,
                                       static_cast<uint8_t>(type),
                                       flags,
                                       static_cast<uint8_t>(program.Byte() % 6),
                                       static_cast<uint32_t>(body.size()),
                                       sequence,
                                       program.Take<uint16_t>()};
    if ((how & 12) == 12) header.length = static_cast<uint32_t>(program.Near(header.length));
    if ((how & 240) == 240) {
      const std::string_view wrong = program.Block(program.Below(4));
      std::memcpy(&header, wrong.data(), wrong.size());
    }
    if (request && (flags & verbs::soft::kLast)) ++sequence_;
    if (!request && type != FrameType::kReceiverNotReady && (how & 4)) ++answered_;
    return Bytes(header) + body;
  }

  // What the device has sent: its requests are to be answered. Any pieces of its stream.
  void Saw(std::string_view bytes) {
    using verbs::soft::FrameType;
    input_.append(bytes);
    for (;;) {
      verbs::soft::FrameHeader header;
      if (input_.size() < sizeof(header)) return;
      std::memcpy(&header, input_.data(), sizeof(header));
      verbs::soft::FrameShape shape;
      BATON_CHECK(verbs::soft::CheckHeader(header, &shape) == nullptr);
      if (input_.size() < size_t{shape.head_size} + shape.payload_size) return;
      Asked asked = {FrameType(header.type), header.sequence, 0};
      if (asked.type == FrameType::kRead) {
        verbs::soft::ReadHead head;
        std::memcpy(&head, input_.data() + sizeof(header), sizeof(head));
        asked.length = head.length;
      }
      const bool request = asked.type >= FrameType::kSend && asked.type <= FrameType::kFetchAndAdd;
      if (request && (header.flags & verbs::soft::kLast)) asked_.push_back(asked);
      input_.erase(0, size_t{shape.head_size} + shape.payload_size);
    }
  }

  // An answer to the oldest request that has none, as it must be or nearly.
  std::string Answer(Program& program) {
    using verbs::soft::FrameType;
    if (asked_.empty()) return "";
    const uint8_t how = program.Byte();
    const Asked asked = asked_.front();
    verbs::soft::FrameHeader header = {verbs::soft::kWireVersion,
                                       static_cast<uint8_t>(FrameType::kAck),
                                       verbs::soft::kFirst | verbs::soft::kLast,
                                       0,
                                       0,
                                       asked.sequence,
                                       0};
    std::string body;
    bool ends = true;
    if ((how & 7) == 7) {
      header.type =
          static_cast<uint8_t>((how & 8) ? FrameType::kNak : FrameType::kReceiverNotReady);
      header.code = static_cast<uint8_t>(program.Byte() % 6);
      header.immediate = (how & 16) ? program.Take<uint32_t>() : 0;
      ends = (how & 8) != 0;
    } else if (asked.type == FrameType::kRead) {
      header.type = static_cast<uint8_t>(FrameType::kReadResponse);
      uint32_t length = asked.length - read_;
      if ((how & 24) == 24) length = static_cast<uint32_t>(program.Near(length / 2));
      length = std::min<uint32_t>(length, verbs::soft::kMaxSegment);
      header.flags =
          static_cast<uint8_t>((read_ == 0 ? verbs::soft::kFirst : 0) |
                               (read_ + length == asked.length ? verbs::soft::kLast : 0));
      read_ += length;
      ends = read_ >= asked.length;
      body.assign(length, static_cast<char>(how));
    } else if (asked.type != FrameType::kSend && asked.type != FrameType::kWrite) {
      header.type = static_cast<uint8_t>(FrameType::kAtomicResponse);
      body = Bytes(program.Take<uint64_t>());
    }
    if ((how & 224) == 224) header.flags = program.Byte() & verbs::soft::kAllFlags;
    if ((how & 224) == 192) header.sequence = static_cast<uint32_t>(program.Near(asked.sequence));
    if (ends) {
      asked_.pop_front();
      read_ = 0;
    }
    header.length = static_cast<uint32_t>(body.size());
    return Bytes(header) + body;
  }

  void Forget() {
    asked_.clear();
    input_.clear();
    read_ = sequence_ = answered_ = 0;
  }

  static std::string ConnectRequest() {
    const verbs::soft::ConnectHead head = Head();
    const verbs::soft::FrameHeader header = {
        verbs::soft::kWireVersion,
        static_cast<uint8_t>(verbs::soft::FrameType::kConnectRequest),
        0,
        0,
        sizeof(head),
        0,
        0};
    return Bytes(header) + Bytes(head);
  }

  static std::string Management(verbs::soft::FrameType type) {
    const verbs::soft::ConnectHead head = Head();
    const bool reply = type == verbs::soft::FrameType::kConnectReply;
    const verbs::soft::FrameHeader header = {verbs::soft::kWireVersion,
                                             static_cast<uint8_t>(type),
                                             0,
                                             0,
                                             reply ? static_cast<uint32_t>(sizeof(head)) : 0,
                                             0,
                                             0};
    return reply ? Bytes(header) + Bytes(head) : Bytes(header);
  }

 private:
  template <typename T>
  static std::string Bytes(const T& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  static verbs::soft::ConnectHead Head() {
    verbs::soft::ConnectHead head = {};
    head.magic = verbs::soft::kWireMagic;
    head.qp_number = 7;
    head.responder_resources = head.initiator_depth = 4;
    head.retry_count = head.rnr_retry_count = 7;
    head.features = verbs::soft::kTakesMemoryOffers;
    return head;
  }

  uint64_t Address(Program& program) {
    return targets_.address + program.Near(program.Flag() ? targets_.bytes : 0);
  }
  uint32_t Key(Program& program) {
    const uint8_t which = program.Byte();
    if (which < 200) return targets_.rkey;
    return which < 240 ? targets_.other_rkey : program.Take<uint32_t>();
  }

  std::string Body(verbs::soft::FrameType type, Program& program) {
    using verbs::soft::FrameType;
    switch (type) {
      case FrameType::kConnectRequest:
      case FrameType::kConnectReply:
      case FrameType::kReject: {
        verbs::soft::ConnectHead head = Head();
        const std::string_view data = program.Block(program.Byte());
        head.private_data_length = static_cast<uint8_t>(program.Near(data.size()));
        if (program.Flag()) {
          head.initiator_depth = program.Byte();
          head.responder_resources = program.Byte();
          head.retry_count = program.Byte() % 9;
          head.rnr_retry_count = program.Byte() % 9;
        }
        return Bytes(head).append(data);
      }
      case FrameType::kWrite: {
        // The frame begins a message, which often fits into one segment, or goes on with the last
        // message.
        if (program.Below(4) != 0) {
          write_ = {Address(program), Key(program), 0, program.Near(16)};
        } else {
          write_.address += verbs::soft::kMaxSegment;
        }
        return Bytes(write_);
      }
      case FrameType::kRead: {
        const verbs::soft::ReadHead head = {Address(program), Key(program),
                                            static_cast<uint32_t>(program.Near(64))};
        return Bytes(head);
      }
      case FrameType::kCompareAndSwap:
      case FrameType::kFetchAndAdd: {
        const uint64_t address = Address(program);
        const verbs::soft::AtomicHead head = {program.Flag() ? address / 8 * 8 : address,
                                              Key(program), 0, program.Byte(), program.Byte()};
        return Bytes(head);
      }
      case FrameType::kAtomicResponse:
        return Bytes(program.Take<uint64_t>());
      case FrameType::kMemoryOffer:
        return std::string(sizeof(verbs::soft::MemoryOffer), static_cast<char>(program.Byte()));
      default:
        return "";
    }
  }

  size_t PayloadSize(verbs::soft::FrameType type, uint8_t flags, Program& program) {
    using verbs::soft::FrameType;
    const bool segment =
        type == FrameType::kSend || type == FrameType::kWrite || type == FrameType::kReadResponse;
    if (!segment) return program.Byte() == 255 ? program.Byte() : 0;
    if (!(flags & verbs::soft::kLast)) return verbs::soft::kMaxSegment;
    if (type == FrameType::kWrite && program.Below(8) != 0) {
      return std::min<uint64_t>(write_.message_length, verbs::soft::kMaxSegment);
    }
    const uint8_t how = program.Byte();
    return how < 224 ? how : size_t{how % 32u} * 1000;
  }

  struct Asked {
    verbs::soft::FrameType type;
    uint32_t sequence;
    uint32_t length;  // of a read
  };

  const WireTargets targets_;
  uint32_t sequence_ = 0, answered_ = 0;
  std::string input_;
  std::deque<Asked> asked_;  // by the device, and not answered
  uint32_t read_ = 0;        // of the first of them, answered already
  verbs::soft::WriteHead write_ = {};
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_WIRE_FRAMES_H_
