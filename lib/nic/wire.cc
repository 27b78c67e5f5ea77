#include "lib/nic/wire.h"

namespace baton::verbs::soft {
namespace {

// `head`: fixed bytes of the body; up to `payload` more may follow, which are part of the head
// when `collected`.
const char* Shape(const FrameHeader& header, uint32_t head, uint32_t payload, bool collected,
                  FrameShape* shape) {
  if (header.length < head) return "frame shorter than its type's fixed part";
  const uint32_t rest = header.length - head;
  if (rest > payload) return "frame longer than its type allows";
  shape->head_size = sizeof(FrameHeader) + head + (collected ? rest : 0);
  shape->payload_size = collected ? 0 : rest;
  return nullptr;
}

// All segments of a message except the last have the largest size.
const char* Segment(const FrameHeader& header, uint32_t head, FrameShape* shape) {
  if ((header.flags & kLast) == 0 && header.length != head + kMaxSegment) {
    return "short segment inside a message";
  }
  return Shape(header, head, kMaxSegment, false, shape);
}

}  // namespace

const char* CheckHeader(const FrameHeader& header, FrameShape* shape) {
  if (header.version != kWireVersion) return "unknown wire version";
  if ((header.flags & ~kAllFlags) != 0) return "unknown flags";
  const FrameType type = static_cast<FrameType>(header.type);
  switch (type) {
    case FrameType::kConnectRequest:
      return Shape(header, sizeof(ConnectHead), kMaxConnectPrivateData, true, shape);
    case FrameType::kConnectReply:
      return Shape(header, sizeof(ConnectHead), kMaxAcceptPrivateData, true, shape);
    case FrameType::kReject:
      return Shape(header, sizeof(ConnectHead), kMaxRejectPrivateData, true, shape);
    case FrameType::kMemoryOffer:
      return Shape(header, sizeof(MemoryOffer), 0, false, shape);
    case FrameType::kReadyToUse:
    case FrameType::kDisconnectRequest:
    case FrameType::kDisconnectReply:
    case FrameType::kMemoryReady:
    case FrameType::kMemoryRefused:
    case FrameType::kAck:
    case FrameType::kNak:
    case FrameType::kReceiverNotReady:
      return Shape(header, 0, 0, false, shape);
    case FrameType::kSend:
    case FrameType::kReadResponse:
      return Segment(header, 0, shape);
    case FrameType::kWrite:
      return Segment(header, sizeof(WriteHead), shape);
    case FrameType::kRead:
      return Shape(header, sizeof(ReadHead), 0, false, shape);
    case FrameType::kCompareAndSwap:
    case FrameType::kFetchAndAdd:
      return Shape(header, sizeof(AtomicHead), 0, false, shape);
    case FrameType::kAtomicResponse:
      return Shape(header, sizeof(uint64_t), 0, false, shape);
  }
  return "unknown frame type";
}

}  // namespace baton::verbs::soft
