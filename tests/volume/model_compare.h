// A view of a filesystem against PosixModel: EXPECTs that tell each difference.
#pragma once

#include "tests/support/posix_model.h"
#include "volume/fs_view.h"

namespace cairn {

// Everything of every inode: attributes, names, contents, xattrs. `exact_holes`: holes and
// allocation are the model's to the page, which holds until a seal has rewritten windows (a page of
// zeros becomes a hole, a page that was partly a hole becomes a whole page).
void CompareWithModel(const FsView& view, const PosixModel& model, bool exact_holes);

// One inode's attributes.
void CompareAttributes(const FsView& view, InodeNumber ino, const PosixModel::Node& node,
                       bool exact_holes);

// Whether all attributes of all inodes are the model's; says nothing about differences.
bool HasSameAttributes(const FsView& view, const PosixModel& model);

}  // namespace cairn
