// For browsers that know no modules: they get a sentence.
document.getElementById("old").hidden = false;
