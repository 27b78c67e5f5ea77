// Frames of the soft device's wire, right and nearly right, out of a fuzz program.
#ifndef TESTS_FUZZ_WIRE_FRAMES_H_
#define TESTS_FUZZ_WIRE_FRAMES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "lib/verbs/soft/wire.h"
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
    const FrameType type = kTypes[program.Below(std::size(kTypes))];
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
        // Of a message of one segment, or of what goes on with the last one.
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
        const verbs::soft::AtomicHead head = {Address(program) & (program.Flag() ? ~7u : ~0u),
                                              Key(program), 0, program.Byte(), program.Byte()};
        return Bytes(head);
      }
      case FrameType::kAtomicResponse:
        return Bytes(program.Take<uint64_t>());
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

  const WireTargets targets_;
  uint32_t sequence_ = 0, answered_ = 0;
  verbs::soft::WriteHead write_ = {};
};

}  // namespace baton::fuzz

#endif  // TESTS_FUZZ_WIRE_FRAMES_H_
