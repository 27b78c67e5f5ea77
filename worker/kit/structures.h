// Structures of the C interfaces begin with their size. A caller that was built with another
// release's header has shorter or longer ones.
#ifndef WORKER_KIT_STRUCTURES_H_
#define WORKER_KIT_STRUCTURES_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace baton::kit {

template <typename T>
T CopyOf(const T& given) {
  T copy = {};
  std::memcpy(static_cast<void*>(&copy), &given, std::min(given.size, sizeof(T)));
  copy.size = sizeof(T);
  return copy;
}
template <typename T>
void CopyTo(const T& ours, T* given) {
  const size_t size = given->size;
  std::memcpy(static_cast<void*>(given), &ours, std::min(size, sizeof(T)));
  given->size = size;
}

// Returns why the structure cannot be used. The caller may have forgotten `size`: none of its
// members would be read, or nothing of a result given to it, such as the number of a grant that is
// there for ever then. Null: it can be used.
template <typename T>
const char* WhyUnusable(const T* given) {
  if (given == nullptr) return "is NULL";
  return given->size < sizeof(given->size) ? "its size is not set" : nullptr;
}

}  // namespace baton::kit

#endif  // WORKER_KIT_STRUCTURES_H_
