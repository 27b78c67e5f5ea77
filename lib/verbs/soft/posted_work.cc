#include "lib/verbs/soft/posted_work.h"

#include <cstring>

namespace baton::verbs::soft {

void PostedSends::Post(const SendRequest& request) {
  SendWork& work = window().Push(request.sges);
  uint8_t* copy = request.inline_data ? window().inline_data(window().tail() - 1) : nullptr;
  work = {};
  work.id = request.wr_id;
  work.remote_address = request.remote_address;
  work.compare_add = request.compare_add;
  work.swap = request.swap;
  for (const ScatterGather& sge : request.sges) {
    if (copy != nullptr && sge.length != 0) {
      std::memcpy(copy + work.length, reinterpret_cast<const void*>(sge.address), sge.length);
    }
    work.length += sge.length;
  }
  work.rkey = request.rkey;
  work.immediate =
      request.opcode == Opcode::kSendWithInvalidate ? request.invalidate_rkey : request.immediate;
  work.opcode = request.opcode;
  work.fence = request.fence;
  work.solicited = request.solicited;
  work.signalled = true;
  work.inline_data = request.inline_data;
  work.sge_count = static_cast<uint8_t>(request.inline_data ? 0 : request.sges.size());
}

}  // namespace baton::verbs::soft
