#ifndef TESTS_WORKER_EXAMPLES_FILED_TEXT_BYTES_H_
#define TESTS_WORKER_EXAMPLES_FILED_TEXT_BYTES_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace baton::filed {

// `text` outlives it.
inline absl::Span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace baton::filed

#endif  // TESTS_WORKER_EXAMPLES_FILED_TEXT_BYTES_H_
