// Filters and order of what is listed, whatever it is printed as.
#ifndef SUPERVISOR_CLI_LISTING_H_
#define SUPERVISOR_CLI_LISTING_H_

#include <algorithm>

#include "google/protobuf/repeated_field.h"

namespace baton {

template <typename Message, typename Predicate>
void KeepIf(google::protobuf::RepeatedPtrField<Message>* list, Predicate keep) {
  list->erase(
      std::remove_if(list->begin(), list->end(), [&](const Message& one) { return !keep(one); }),
      list->end());
}

template <typename Message, typename Key>
void SortBy(google::protobuf::RepeatedPtrField<Message>* list, Key key) {
  std::stable_sort(list->begin(), list->end(),
                   [&](const Message& a, const Message& b) { return key(a) < key(b); });
}

}  // namespace baton

#endif  // SUPERVISOR_CLI_LISTING_H_
